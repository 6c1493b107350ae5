"""`tsps.export`: writes a model as a served version."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._version import __version__
from tf_sparse_ps.checkpoints import tables as model_tables
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.exporting import saved_model, table_content
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers.sharded_content import ShardedContent
from tf_sparse_ps.node import activity
from tf_sparse_ps.serving import fault_points, table_files
from tf_sparse_ps.serving.table_files import TableFacts
from tf_sparse_ps.serving.version import TableEntry, Version, VersionManifest
from tf_sparse_ps.serving.version_builder import TableFiles, VersionBuilder
from tf_sparse_ps.table import several_tables
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.scan import Scan

WRITER = 0  # the rank that writes


def export(
    model: Any,
    path: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    rows: str | None = None,
    absent: str = "initial",
    signatures: Mapping[str, Any] | None = None,
    diff: bool = False,
) -> str:
    """Writes a model as a version that is served from one copy of its tables per machine (docs/serving.md).

    Call it between two steps, on all ranks. Rank 0 writes; without sharded tables, other ranks return at once, and rank
    0 may call it alone. The version appears when all of it is on the disk. A killed call leaves nothing that servers
    see.

    Args:
      model: A Keras model, which must be built.
      path: The folder of the version, which must not exist. Servers take the folder with the greatest number as its
        name in a directory.
      base: An earlier version of the same model. The new one then shares its files, and adds what has changed. A table
        is written with all rows, and a line says so, if the changes since are not known: the version is of another job,
        or very many rows were erased since.
      rows: How rows are stored: "float32", "bfloat16", "float16" or "int8". None: as each table stores them.
      absent: What a key without a row reads: its "initial" value, as in training, or "zeros".
      signatures: Functions by name, as for `tf.saved_model.save`. None: what `model.export` makes.
      diff: Where the changes since `base` are not known, compare all rows with its.

    Returns:
      The folder.

    Raises:
      InvalidArgumentError: `path` exists; an argument has another value; a row cannot be stored as `rows`.
      NotFoundError: `base` is not a version.
      WriterLockedError: Another process is writing the version.

    Example:
      >>> tsps.export(model, "serve/1")
      >>> model.fit(...)
      >>> tsps.export(model, "serve/2", base="serve/1")    # writes what fit has changed
    """
    folder = os.path.abspath(path)
    if not isinstance(model, _keras.Layer):
        raise InvalidArgumentError(f"`model` must be a Keras model. Received: {type(model).__name__}")
    bindings = model_tables.of(model)
    sharded = [binding.config.name for binding in bindings if binding.placement == "sharded"]
    rank = job.current().rank if bindings else 0
    if rank != WRITER and not sharded:
        return folder
    with activity.doing(f"exporting to {folder}"):
        exported = _Export(bindings, Path(folder), None if base is None else Version(base), rows, absent, diff=diff)
        if rank == WRITER:
            exported.write(model, signatures)
        else:
            exported.send()
    return folder


class _Export:
    """One call of `export`, on one rank."""

    def __init__(
        self,
        bindings: list[TableBinding],
        path: Path,
        base: Version | None,
        rows: str | None,
        absent: str,
        *,
        diff: bool,
    ) -> None:
        """Checks the arguments. They are those of `export`."""
        self._path, self._absent, self._diff = path, absent, diff
        self._step = model_tables.committed_step() if bindings else 0
        self._tables = [
            _Table(
                binding,
                os.path.basename(binding.path),
                table_files.facts_of(binding.reader(), rows=rows, absent=absent),
                table_content.find(base, os.path.basename(binding.path)),
            )
            for binding in bindings
        ]

    def send(self) -> None:
        """Sends the rows of this node's shards to the rank that writes."""
        for table in self._tables:
            if table.is_sharded:
                with self._all_shards(table) as content:
                    for _ in content:
                        raise AssertionError("this rank receives no rows")

    def write(self, model: Any, signatures: Mapping[str, Any] | None) -> None:
        """Writes the version."""
        with contextlib.ExitStack() as within:
            builder = within.enter_context(VersionBuilder(self._path, f"rank {WRITER}"))
            marks, scans = self._begin(within)
            root = saved_model.write(model, builder.folder, signatures, [table.asset for table in self._tables])
            fault_points.reach("model_saved")
            entries = [
                self._write_table(table, builder.new_table(table.asset), marks.get(table.binding.uuid), scans)
                for table in self._tables
            ]
            fault_points.reach("tables_ready")
            builder.finish(
                VersionManifest(
                    id=secrets.token_hex(16),
                    step=self._step,
                    tables=tuple(entries),
                    graph=saved_model.graph_checksum(builder.folder),
                    variables=saved_model.variable_keys(model, root, builder.folder),
                    versions={
                        "tf_sparse_ps": __version__,
                        "tensorflow": tf.__version__,
                        "keras": str(getattr(_keras.keras, "__version__", "2")),
                        "python": ".".join(map(str, sys.version_info[:3])),
                    },
                )
            )

    def _begin(self, within: contextlib.ExitStack) -> tuple[dict[str, str], dict[str, Scan]]:
        """Begins scans of the tables of which this node has all rows, all in one state.

        Returns:
          The mark of that state, and the scan, of each table by its uuid. A scan has what was written since the earlier
          version if that is known, else all rows.
        """
        tables = [table for table in self._tables if not table.is_sharded]
        if not tables:
            return {}, {}
        marks = model_tables.mark_changes([table.binding for table in tables])
        since = {table.binding.reader(): table.known_since(self._absent) for table in tables}
        scans = several_tables.scan(since, slots=False)
        for scan in scans.values():
            within.enter_context(scan)
        return marks, {table.binding.uuid: scans[table.binding.reader()] for table in tables}

    def _write_table(self, table: _Table, files: TableFiles, mark: str | None, scans: Mapping[str, Scan]) -> TableEntry:
        """Writes the files of a table, and the file in `assets` that names them."""
        if table.is_sharded:
            with self._all_shards(table) as content:
                facts = self._write_all(table, files, content)
        else:
            scan = scans[table.binding.uuid]
            if scan.erased is not None:
                facts = self._write_changes(table, files, scan, scan.erased, most_keys=0)
            elif table.earlier is not None and self._diff and table.reason_for_base(self._absent) is None:
                difference = table_content.Difference(scan, table.earlier.open(), table.binding.reader())
                facts = self._write_changes(table, files, difference, difference.erased(), most_keys=len(scan))
            else:
                facts = self._write_all(table, files, scan)
        return files.finish(
            table.binding.config.name, facts, step=self._step, marks=[] if mark is None else [mark], absent=self._absent
        )

    def _all_shards(self, table: _Table) -> ShardedContent:
        return ShardedContent(table.binding, f"exporting to {self._path}", slots=False, to=WRITER)

    def _write_all(self, table: _Table, files: TableFiles, content: Any) -> TableFacts:
        if table.earlier is not None:
            reason = table.reason_for_base(self._absent) or "what has changed since the earlier version is not known"
            print(
                f"tf_sparse_ps: table {table.facts.name!r} is exported with all rows, because {reason}",
                file=sys.stderr,
                flush=True,
            )
        files.add_base(table.facts, content)
        return table.facts

    def _write_changes(
        self, table: _Table, files: TableFiles, written: Any, erased: Keys, *, most_keys: int
    ) -> TableFacts:
        assert table.earlier is not None
        facts = table.facts._replace(hash_seed=table.earlier.entry.hash_seed)
        files.link(table.earlier.version.path, table.earlier.entry)
        files.add_layer(facts, written, erased, step=self._step, most_keys=most_keys)
        files.merge()
        return facts


class _Table(NamedTuple):
    """A table that is exported."""

    binding: TableBinding
    asset: str
    facts: TableFacts
    earlier: table_content.Earlier | None
    """The table in the earlier version."""

    @property
    def is_sharded(self) -> bool:
        """Whether other nodes have some of the rows."""
        return self.binding.placement == "sharded"

    def reason_for_base(self, absent: str) -> str | None:
        """Returns why the table cannot have layers above the earlier version; None: it can."""
        if self.earlier is None:
            return "there is no earlier version of it"
        return self.earlier.reason_for_base(self.facts, absent)

    def known_since(self, absent: str) -> str | None:
        """Returns the mark of the state that the earlier version has; None: all rows are written."""
        if self.earlier is None or self.reason_for_base(absent) is not None or not self.earlier.entry.marks:
            return None
        return self.earlier.entry.marks[0]
