"""`TablePlan`: how a table is written to a new version, which may build on an earlier one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from tf_sparse_ps.serving.base_writer import BaseWriter
from tf_sparse_ps.serving.serving_table import ServingTable
from tf_sparse_ps.serving.table_files import TableFacts
from tf_sparse_ps.serving.version import ASSETS, TableEntry, Version
from tf_sparse_ps.serving.version_builder import NO_BASES, TableFiles


class EarlierTable(NamedTuple):
    """A table in an earlier version, on which the new version builds."""

    version: Version
    entry: TableEntry
    newest: dict[str, Any]
    """The facts of its newest file."""

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


class TablePlan(NamedTuple):
    """How a table is written to a new version."""

    facts: TableFacts
    earlier: EarlierTable | None
    """The table in the earlier version."""
    reason: str | None
    """Why it cannot have layers above the earlier version; None: it can, or there is none."""

    @classmethod
    def of(cls, facts: TableFacts, absent: str, base: Version | None, asset: str) -> TablePlan:
        """Compares a table with that of an earlier version.

        Args:
          facts: The table as it is.
          absent: What keys without a row are to read.
          base: The earlier version, or None.
          asset: The name of the table's file in `assets`.
        """
        earlier = _find(base, asset)
        return cls(facts, earlier, None if earlier is None else earlier.reason_against_layers(facts, absent))

    def since(self, parts: int) -> list[str | None]:
        """Returns the marks of the state that the earlier version has; None: what was written since is not known.

        Args:
          parts: The number of nodes that have a part of the table.
        """
        marks: list[str | None] = []
        if self.earlier is not None and self.reason is None and self.earlier.entry.uuid == self.facts.uuid:
            marks = list(self.earlier.entry.marks)
        return marks if len(marks) == parts else [None] * parts

    def facts_of_file(self, *, has_changes: bool, diff: bool) -> TableFacts:
        """Returns the facts of the file that is written.

        Args:
          has_changes: Whether it is written of what has changed since the earlier version.
          diff: The argument of `write_rows`.
        """
        return self._facts_of_layer() if has_changes or self._compares(diff) else self.facts

    def _compares(self, diff: bool) -> bool:
        """Whether all rows are compared with the earlier version's."""
        return diff and self.earlier is not None and self.reason is None

    def _facts_of_layer(self) -> TableFacts:
        assert self.earlier is not None
        return self.facts._replace(hash_seed=self.earlier.entry.hash_seed, uuid=self.earlier.newest["table_uuid"])

    def link(self, files: TableFiles, base_writer: BaseWriter | None = None) -> TableFacts:
        """Takes over the files of the earlier version, or new bases. Returns the facts of a layer above them.

        Args:
          files: The files of the table in the new version.
          base_writer: Writes new bases; None: they are written with the version.
        """
        assert self.earlier is not None
        entry = self.earlier.entry
        bases = NO_BASES if base_writer is None else base_writer.bases(entry)
        files.link(self.earlier.version.path, entry, bases)
        return self._facts_of_layer()

    def write_rows(
        self,
        files: TableFiles,
        content: Any,
        *,
        diff: bool,
        base_writer: BaseWriter | None = None,
        show_progress: bool = True,
        may_continue: Callable[[], None] = lambda: None,
    ) -> None:
        """Writes all rows, or those that differ from the earlier version's.

        Args:
          files: The files of the table in the new version.
          content, show_progress, may_continue: As for `table_files.write_base`.
          diff: Whether to write what differs, if the table can have layers above the earlier version.
          base_writer: As for `link`.
        """
        if self._compares(diff):
            facts = self.link(files, base_writer)
            files.add_difference(facts, content, show_progress=show_progress, may_continue=may_continue)
            return
        if self.earlier is not None:
            reason = self.reason or "what has changed since the earlier version is not known"
            name = self.facts.name
            print(
                f"tf_sparse_ps: table {name!r} is exported with all rows, because {reason}", file=sys.stderr, flush=True
            )
        files.add_base(self.facts, content, show_progress=show_progress, may_continue=may_continue)


def _find(base: Version | None, asset: str) -> EarlierTable | None:
    """Returns the table of a version by the name of its asset, or None."""
    for entry in () if base is None else base.tables:
        if entry.asset == asset and base is not None:
            return EarlierTable(base, entry, dict(ServingTable.open(base.path / ASSETS / asset).files()[0]))
    return None
