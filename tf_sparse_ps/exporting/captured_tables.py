"""`CapturedTables`: the tables of a model as of one step, which are written to a version."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tf_sparse_ps.checkpoints import tables as model_tables
from tf_sparse_ps.exporting.shard_collection import ShardCollection
from tf_sparse_ps.exporting.table_plan import TablePlan
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers.sharded_content import ShardedContent
from tf_sparse_ps.serving import fault_points, table_files
from tf_sparse_ps.serving.base_writer import BaseWriter
from tf_sparse_ps.serving.table_files import CollectedRows
from tf_sparse_ps.serving.version import TableEntry, Version
from tf_sparse_ps.serving.version_builder import TableFiles, VersionBuilder
from tf_sparse_ps.table import several_tables
from tf_sparse_ps.table.scan import Scan


class Options(NamedTuple):
    """How tables are exported: the arguments of `tsps.export`."""

    rows: str | None = None
    absent: str = "initial"
    diff: bool = False


class CapturedTables:
    """The tables of a model as of one step, on the rank that writes. Training may continue while they are written.

    Attributes:
      step: The step.
      assets: The names of the tables' files in `assets`.
    """

    def __init__(
        self,
        bindings: Sequence[TableBinding],
        base: Version | None,
        options: Options,
        *,
        shards: ShardCollection,
        base_writer: BaseWriter | None = None,
    ) -> None:
        """Checks the options, and compares the tables with those of an earlier version.

        Args:
          bindings: The tables.
          base: The earlier version, on which the new one builds if it can; or None.
          options: How the tables are exported.
          shards: Brings the rows of sharded tables.
          base_writer: Writes new bases while versions appear; None: they are written with the version.

        Raises:
          InvalidArgumentError: An option has another value.
        """
        self._options, self._shards, self._base_writer = options, shards, base_writer
        self.step = model_tables.committed_step() if bindings else 0
        self._tables = [_table(binding, base, options) for binding in bindings]
        self.assets = [table.asset for table in self._tables]
        self._contents: dict[str, _Content] = {}  # by the tables' uuids
        self._scans: list[Scan] = []

    def begin(self, builder: VersionBuilder) -> None:
        """Begins to keep the tables as they are, and receives the rows of sharded ones. Call it between two steps.

        Args:
          builder: The version.

        Raises:
          UnavailableError: Another scan takes the memory.
          StateError: Another rank has failed.
        """
        marks = model_tables.mark_changes([table.binding for table in self._tables])
        local = [table for table in self._tables if not table.is_sharded]
        if local:
            readers = [table.binding.reader() for table in local]
            # Training may change all rows meanwhile: then their old values take as much memory as they do.
            most_bytes = max(1 << 30, sum(int(reader.stats()["bytes"]) for reader in readers))
            since = {reader: table.plan.since(1)[0] for reader, table in zip(readers, local, strict=True)}
            scans = several_tables.scan(since, slots=False, max_bytes=most_bytes)
            self._scans = list(scans.values())
            for table in local:
                uuid = table.binding.uuid
                self._contents[uuid] = _Content(scans[table.binding.reader()], [marks[uuid]])
        tables = {table.binding.uuid: table for table in self._tables if table.is_sharded}
        collected = self._shards.receive(
            {uuid: table.plan.since(table.binding.nodes) for uuid, table in tables.items()},
            marks,
            lambda binding, content: self._collect(tables[binding.uuid], content, builder),
        )
        for uuid, (rows, marks_of_nodes) in collected.items():
            self._contents[uuid] = _Content(rows, marks_of_nodes)

    def _collect(self, table: _Table, content: ShardedContent, builder: VersionBuilder) -> CollectedRows:
        """Receives the rows of a sharded table, on the disk."""
        facts = table.plan.facts_of_file(has_changes=content.erased is not None, diff=self._options.diff)
        folder = builder.table_folder(table.asset)
        rows = CollectedRows(facts, folder, most_keys=len(content), step=content.step, erased=content.erased)
        for block in content:
            rows.add(block)
        return rows

    def close(self) -> None:
        """Ends what `begin` has begun."""
        for scan in self._scans:
            scan.close()
        self._contents = {}

    def write(
        self,
        builder: VersionBuilder,
        *,
        show_progress: bool = True,
        may_continue: Callable[[], None] = lambda: None,
    ) -> tuple[TableEntry, ...]:
        """Writes the tables. Needs no TensorFlow and no other rank.

        Args:
          builder: The version.
          show_progress: Whether to show a progress bar.
          may_continue: Called again and again. An error that it raises ends the writing.
        """
        entries = []
        for table in self._tables:
            content = self._contents[table.binding.uuid]
            files = builder.new_table(table.asset)
            self._write(table, files, content.rows, show_progress, may_continue)
            entry = files.finish(
                table.binding.config.name,
                table.plan.facts,
                step=self.step,
                marks=content.marks,
                absent=self._options.absent,
            )
            entries.append(entry)
        fault_points.reach("tables_ready")
        return tuple(entries)

    def _write(
        self,
        table: _Table,
        files: TableFiles,
        rows: Scan | CollectedRows,
        show_progress: bool,
        may_continue: Callable[[], None],
    ) -> None:
        if rows.erased is not None:
            facts = table.plan.link(files, self._base_writer)
            files.add_layer(facts, rows, may_continue=may_continue)
        else:
            table.plan.write_rows(
                files,
                rows,
                diff=self._options.diff,
                base_writer=self._base_writer,
                show_progress=show_progress,
                may_continue=may_continue,
            )
        files.merge(may_continue)


class _Content(NamedTuple):
    """The rows of a table that are written."""

    rows: Scan | CollectedRows
    marks: list[str]
    """For each node that has a part of the table, the mark of the state that the rows have."""


class _Table(NamedTuple):
    """A table that is exported."""

    binding: TableBinding
    asset: str
    plan: TablePlan

    @property
    def is_sharded(self) -> bool:
        """Whether other nodes have some of the rows."""
        return self.binding.placement == "sharded"


def _table(binding: TableBinding, base: Version | None, options: Options) -> _Table:
    asset = os.path.basename(binding.path)
    facts = table_files.facts_of(binding.reader(), rows=options.rows, absent=options.absent)
    return _Table(binding, asset, TablePlan.of(facts, options.absent, base, asset))
