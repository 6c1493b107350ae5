"""`EarlierTable`: a table in an earlier version, and whether a new version can build on it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from tf_sparse_ps.serving.serving_table import ServingTable
from tf_sparse_ps.serving.table_files import TableFacts
from tf_sparse_ps.serving.version import ASSETS, TableEntry, Version


class EarlierTable(NamedTuple):
    """A table in an earlier version, on which the new version builds."""

    version: Version
    entry: TableEntry
    newest: dict[str, Any]
    """The facts of its newest file."""

    def facts_of_layer(self, facts: TableFacts) -> TableFacts:
        """Returns the facts of a layer above the files of this table."""
        return facts._replace(hash_seed=self.entry.hash_seed, uuid=self.newest["table_uuid"])

    def reason_against_layers(self, facts: TableFacts, absent: str) -> str | None:
        """Returns why no layer above the files can have the table's rows; None: it can.

        Args:
          facts: The table as it is.
          absent: What keys without a row are to read.
        """
        if (facts.rows, absent) != (self.entry.rows, self.entry.absent):
            return f"the earlier version has {self.entry.rows} rows and absent={self.entry.absent!r}"
        for name in ("dim", "dtype", "key_limit"):
            stored, wanted = self.newest[name], getattr(facts, name)
            if stored != wanted:
                return f"the earlier version has {name}={stored!r}, and the table has {wanted!r}"
        if self.newest["initializer"] != facts.initializer:
            return "its rows have other initial values than those of the earlier version"
        return None

    def mark(self, facts: TableFacts) -> str | None:
        """Returns the mark of the state that the version has, if it is a state of this table."""
        return self.entry.marks[0] if self.entry.uuid == facts.uuid and self.entry.marks else None


def say_base(name: str, reason: str) -> None:
    """Reports that a table is exported with all rows although an earlier version was given."""
    print(f"tf_sparse_ps: table {name!r} is exported with all rows, because {reason}", file=sys.stderr, flush=True)


def find(base: Version | None, asset: str) -> EarlierTable | None:
    """Returns the table of a version by the name of its asset, or None."""
    for entry in () if base is None else base.tables:
        if entry.asset == asset and base is not None:
            return EarlierTable(base, entry, dict(ServingTable.open(base.path / ASSETS / asset).files()[0]))
    return None
