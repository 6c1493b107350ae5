"""`CapturedTables`: the tables of a model as of one step, which are written to a version."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tf_sparse_ps import job
from tf_sparse_ps.checkpoints import tables as model_tables
from tf_sparse_ps.collectives.all_or_none import error_text, raise_failures
from tf_sparse_ps.exporting.table_plan import TablePlan
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers.sharded_content import ShardedContent
from tf_sparse_ps.serving import fault_points, table_files
from tf_sparse_ps.serving.base_writer import BaseWriter
from tf_sparse_ps.serving.version import TableEntry, Version
from tf_sparse_ps.serving.version_builder import TableFiles, VersionBuilder
from tf_sparse_ps.table import several_tables
from tf_sparse_ps.table.scan import Scan

WRITER = 0  # the rank that writes versions


class Options(NamedTuple):
    """How tables are exported: the arguments of `tsps.export`."""

    rows: str | None = None
    absent: str = "initial"
    diff: bool = False


class CapturedTables:
    """The tables of a model as of one step. Training may continue while they are written, unless they are sharded.

    Attributes:
      step: The step.
      assets: The names of the tables' files in `assets`.
    """

    def __init__(
        self,
        bindings: Sequence[TableBinding],
        path: Path,
        base: Version | None,
        options: Options,
        base_writer: BaseWriter | None = None,
    ) -> None:
        """Checks the options, and compares the tables with those of an earlier version.

        Args:
          bindings: The tables.
          path: The folder of the version.
          base: The earlier version, on which the new one builds if it can; or None.
          options: How the tables are exported.
          base_writer: Writes new bases while versions appear; None: they are written with the version.

        Raises:
          InvalidArgumentError: An option has another value.
        """
        self._path, self._options, self._base_writer = path, options, base_writer
        self.step = model_tables.committed_step() if bindings else 0
        self._tables = [_table(binding, base, options) for binding in bindings]
        self.assets = [table.asset for table in self._tables]
        self._marks: dict[str, str] = {}
        self._scans: dict[str, Scan] = {}
        self._have_failed_together = False

    def begin(self) -> None:
        """Begins to keep the tables as they are. Only the writer calls it, between two steps.

        Raises:
          UnavailableError: Another scan takes the memory.
        """
        tables = [table for table in self._tables if not table.is_sharded]
        if not tables:
            return
        self._marks = model_tables.mark_changes([table.binding for table in tables])
        readers = [table.binding.reader() for table in tables]
        # Training may change all rows meanwhile: then their old values take as much memory as they do.
        most_bytes = max(1 << 30, sum(int(reader.stats()["bytes"]) for reader in readers))
        since = {reader: table.plan.since() for reader, table in zip(readers, tables, strict=True)}
        scans = several_tables.scan(since, slots=False, max_bytes=most_bytes)
        self._scans = {table.binding.uuid: scans[table.binding.reader()] for table in tables}

    def close(self) -> None:
        """Ends what `begin` has begun."""
        for scan in self._scans.values():
            scan.close()

    @contextlib.contextmanager
    def telling_others(self) -> Iterator[None]:
        """Surrounds the writing. If it fails, the ranks that call `send_shards` learn that, and fail, too."""
        try:
            yield
        except Exception as error:
            if not self._have_failed_together:
                self._agree(error)
            raise
        self._agree(None)

    def send_shards(self) -> None:
        """Sends the rows of this node's shards to the rank that writes. All other ranks call it.

        Raises:
          StateError: The rank that writes has failed.
        """
        for table in self._tables:
            if table.is_sharded:
                self._agree(None)
                with self._all_shards(table) as content:
                    for _ in content:
                        raise AssertionError("this rank receives no rows")
        self._agree(None)

    def _agree(self, error: Exception | None) -> None:
        """Raises on all ranks if the rank that writes has failed. Does nothing if no table is sharded."""
        if any(table.is_sharded for table in self._tables):
            self._have_failed_together = error is not None
            texts = job.current().collectives.allgather_object(error_text(error), "tsps.export.agree")
            raise_failures(texts, error, f"exporting to {self._path}")

    def write(
        self,
        builder: VersionBuilder,
        *,
        show_progress: bool = True,
        may_continue: Callable[[], None] = lambda: None,
    ) -> tuple[TableEntry, ...]:
        """Writes the tables. Needs no TensorFlow unless tables are sharded.

        Args:
          builder: The version.
          show_progress: Whether to show a progress bar.
          may_continue: Called again and again. An error that it raises ends the writing.
        """
        writing = _Writing(builder, show_progress, may_continue)
        entries = tuple(self._write(table, writing) for table in self._tables)
        fault_points.reach("tables_ready")
        return entries

    def _write(self, table: _Table, writing: _Writing) -> TableEntry:
        files = writing.builder.new_table(table.asset)
        if table.is_sharded:
            self._agree(None)
            self._have_failed_together = True  # in the following lines an error is one of all ranks
            with self._all_shards(table) as content:
                self._write_rows(table, files, content, writing)
            self._have_failed_together = False
        elif (scan := self._scans[table.binding.uuid]).erased is not None:
            facts = table.plan.link(files, self._base_writer)
            files.add_layer(facts, scan, scan.erased, step=self.step, most_keys=0, may_continue=writing.may_continue)
        else:
            self._write_rows(table, files, scan, writing)
        files.merge(writing.may_continue)
        mark = self._marks.get(table.binding.uuid)
        return files.finish(
            table.binding.config.name,
            table.plan.facts,
            step=self.step,
            marks=[] if mark is None else [mark],
            absent=self._options.absent,
        )

    def _write_rows(self, table: _Table, files: TableFiles, content: Any, writing: _Writing) -> None:
        table.plan.write_rows(
            files,
            content,
            diff=self._options.diff,
            show_progress=writing.show_progress,
            may_continue=writing.may_continue,
        )

    def _all_shards(self, table: _Table) -> ShardedContent:
        return ShardedContent(table.binding, f"exporting to {self._path}", slots=False, to=WRITER)


class _Writing(NamedTuple):
    """The arguments of `CapturedTables.write`."""

    builder: VersionBuilder
    show_progress: bool
    may_continue: Callable[[], None]


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
