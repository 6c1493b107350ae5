"""Lists the tables of a group, a checkpoint or a served version, and opens one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.monitoring import own_groups
from tf_sparse_ps.serving.serving_table import ServingTable
from tf_sparse_ps.serving.version import ASSETS, TableEntry, Version
from tf_sparse_ps.stored.contents import CheckpointTable, Content, LiveTable, ServedTable
from tf_sparse_ps.table.groups import open_group, table_number
from tf_sparse_ps.table.table import Table


class StoredTable(NamedTuple):
    """A table that can be opened."""

    name: str
    open: Callable[[], Content]


def choose(where: str | os.PathLike[str], tables: Sequence[StoredTable], name: str | None) -> StoredTable:
    """Returns a table of several, as `table.groups.table_number` does. `where`: what has them, for messages."""
    return tables[table_number(os.fspath(where), [table.name for table in tables], name)]


def of_group(path: Path) -> list[StoredTable]:
    """Returns the tables of a group. Counts of keys without a row are none."""
    names = [str(table["name"]) for _, table, _ in own_groups.rows_of(open_group(os.fspath(path)))]
    return [StoredTable(name, functools.partial(live, path / name)) for name in names]


def of_checkpoint(checkpoint: StoredCheckpoint) -> list[StoredTable]:
    """Returns the tables of a checkpoint. Counts of keys without a row are none."""
    return [
        StoredTable(str(table["name"]), functools.partial(CheckpointTable, checkpoint, number))
        for number, table in enumerate(checkpoint.manifest.row_tables)
    ]


def of_version(version: Version) -> list[StoredTable]:
    """Returns the tables of a served version."""
    return [StoredTable(entry.name, functools.partial(_served, version, entry)) for entry in version.manifest.tables]


def live(path: Path) -> LiveTable:
    """Opens a table of a group for reading."""
    return LiveTable(Table.open(path))


def _served(version: Version, entry: TableEntry) -> ServedTable:
    return ServedTable(ServingTable.open(version.path / ASSETS / entry.asset), entry)
