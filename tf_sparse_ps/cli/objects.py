"""`open_object`: what is at a path, with its tables, for commands that show it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_sparse_ps.checkpoints import stored_checkpoint
from tf_sparse_ps.cli import groups
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.serving.version import Version
from tf_sparse_ps.stored import tables
from tf_sparse_ps.stored.contents import CheckpointTable, Content, FileTable
from tf_sparse_ps.stored.paths import Kind, kind_of
from tf_sparse_ps.stored.tables import StoredTable
from tf_sparse_ps.table.groups import open_group, table_number


class StoredObject:
    """A group, a table, a file, a checkpoint or a version, with its tables.

    Attributes:
      path: The path; for a directory of checkpoints or versions, that of the newest one.
      kind: "group", "table", "parameter_file", "checkpoint" or "version".
      step: The step that it has.
      facts: Values that `inspect` shows besides the tables. They depend on the kind.
      tables: Its tables.
      sketches: The counts of keys without a row that a checkpoint has, for `diff`.
    """

    sketches: Sequence[Content] = ()

    def __init__(self, path: Path, kind: str, step: int, facts: dict[str, Any], tables: Sequence[Content]) -> None:
        """Callers use `open_object`."""
        self.path, self.kind, self.step, self.facts, self.tables = path, kind, step, facts, tables

    def table(self, name: str | None) -> Content:
        """Returns a table by its name; None: the only table.

        Raises:
          InvalidArgumentError: There are several tables, and `name` is None.
          NotFoundError: There is no such table.
        """
        return self.tables[table_number(os.fspath(self.path), [table.name for table in self.tables], name)]


def find(path: Path) -> tuple[Kind, Path]:
    """Finds out the kind of the object at a path, as `kind_of`. Raises UnsupportedError if it is something else."""
    found = kind_of(path)
    if found is not None:
        return found
    raise UnsupportedError(
        f"{path} is no group, table, sparse-parameter file, checkpoint or served version, and no directory of "
        "checkpoints or versions. Name one of these"
    )


def open_object(path: Path) -> StoredObject:
    """Opens the object at a path. Reads the headers of files.

    Raises:
      NotFoundError, AccessError, UnsupportedError: As `find`.
      DamagedFileError: A file that is read is damaged.
    """
    kind, path = find(path)
    return _OPEN[kind](path)


def _group(path: Path) -> StoredObject:
    info = open_group(os.fspath(path)).info()
    return StoredObject(path, "group", info["step"], _facts_of_group(info), _opened(tables.of_group(path)))


def _table(path: Path) -> StoredObject:
    info = open_group(os.fspath(path.parent)).info()
    return StoredObject(path, "table", info["step"], _facts_of_group(info), [tables.live(path)])


def _facts_of_group(info: dict[str, Any]) -> dict[str, Any]:
    pid, alive = int(info["writer_pid"]), bool(info["writer_alive"])
    return {
        "uuid": info["uuid"],
        "owner": {"pid": pid or None, "alive": alive, "since": groups.started(pid) if alive else None},
        "other_changes": info["version"],
        "unfinished": info["unfinished"],
        "bytes": info["bytes"],
    }


def _parameter_file(path: Path) -> StoredObject:
    table = FileTable(path)
    return StoredObject(path, "parameter_file", table.step, {"bytes": path.stat().st_size}, [table])


def _checkpoint(path: Path) -> StoredObject:
    checkpoint = stored_checkpoint.look(path)
    content = checkpoint.manifest
    facts = {
        "id": content.id,
        "job": content.job,
        "epoch": content.epoch,
        "batch": content.batch,
        "ranks": content.ranks,
        "nodes": content.nodes,
        "node": content.node,
        "builds_on": [link.name for link in content.chain],
        "variables": len(content.variables),
        "versions": content.versions,
        "bytes": sum(entry.size for entry in content.files),
    }
    stored = StoredObject(path, "checkpoint", content.step, facts, _opened(tables.of_checkpoint(checkpoint)))
    stored.sketches = [CheckpointTable(checkpoint, at) for at in range(len(content.row_tables), len(content.tables))]
    return stored


def _version(path: Path) -> StoredObject:
    version = Version(path)
    content = version.manifest
    facts = {
        "id": content.id,
        "variables": len(content.variables),
        "versions": content.versions,
        "bytes": sum(file.bytes for file in content.table_files) + sum(file.bytes for file in content.others),
    }
    return StoredObject(path, "version", content.step, facts, _opened(tables.of_version(version)))


def _opened(stored: Sequence[StoredTable]) -> list[Content]:
    return [table.open() for table in stored]


_OPEN = {
    "group": _group,
    "table": _table,
    "parameter_file": _parameter_file,
    "checkpoint": _checkpoint,
    "version": _version,
}
