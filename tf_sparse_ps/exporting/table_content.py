"""What an export writes of a table that an earlier version has: what has changed since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tf_sparse_ps.serving.serving_table import ServingTable
from tf_sparse_ps.serving.table_files import TableFacts
from tf_sparse_ps.serving.version import ASSETS, TableEntry, Version
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.scan import Block, Scan


class Earlier(NamedTuple):
    """A table in an earlier version, on which the new version builds."""

    version: Version
    entry: TableEntry

    def open(self) -> ServingTable:
        """Opens the table."""
        return ServingTable.open(self.version.path / ASSETS / self.entry.asset)

    def reason_for_base(self, facts: TableFacts, absent: str) -> str | None:
        """Returns why the table cannot have layers above the earlier version; None: it can.

        Args:
          facts: The table as it is.
          absent: What keys without a row are to read.
        """
        if (facts.rows, absent) != (self.entry.rows, self.entry.absent):
            return f"the earlier version has {self.entry.rows} rows and absent={self.entry.absent!r}"
        newest = self.open().files()[0]
        wanted = {"dim": facts.dim, "dtype": facts.dtype, "key_limit": facts.key_limit, "table_uuid": facts.uuid}
        for name, value in wanted.items():
            if newest[name] != value:
                return f"the earlier version has {name}={newest[name]!r}, and the table has {value!r}"
        if newest["initializer"] != facts.initializer:
            return "its rows have other initial values than those of the earlier version"
        return None


def find(base: Version | None, asset: str) -> Earlier | None:
    """Returns the table of a version by the name of its asset, or None."""
    entries = [] if base is None else [entry for entry in base.tables if entry.asset == asset]
    return Earlier(base, entries[0]) if base is not None and entries else None


class Difference:
    """The rows of a scan that differ from those of an earlier version."""

    def __init__(self, scan: Scan, earlier: ServingTable, table: Any) -> None:
        """Reads nothing yet.

        Args:
          scan: All rows of the table.
          earlier: The table in the earlier version.
          table: The table, a `tsps.Table`.
        """
        self._scan, self._earlier, self._table = scan, earlier, table

    def erased(self) -> Keys:
        """Returns the keys of the earlier version that the table does not have."""
        parts = [keys[~self._table.entries(keys)[0]] for keys in self._earlier.key_parts()]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def __iter__(self) -> Iterator[Block]:
        for block in self._scan:
            stored = self._earlier.as_stored(block.rows)
            same = self._earlier.lookup(block.keys).view(np.int32) == stored.view(np.int32)
            differing = ~self._earlier.contains(block.keys) | ~same.all(axis=1)
            if differing.any():
                yield block.where(differing)
