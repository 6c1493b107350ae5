"""`Publisher`: writes versions of a model in a thread, while training continues."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tf_sparse_ps.errors import StateError, TableError, UnavailableError, WriterLockedError
from tf_sparse_ps.exporting.captured_tables import CapturedTables, Options
from tf_sparse_ps.exporting.saved_model import ModelGraph, Values
from tf_sparse_ps.exporting.shard_collection import WRITER, ShardCollection
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.serving import fault_points, retention
from tf_sparse_ps.serving.base_writer import BaseWriter, lower_priority
from tf_sparse_ps.serving.version import Version, newest, numbered
from tf_sparse_ps.serving.version_builder import VersionBuilder

CALL = "publishing a version"
# Errors that may be gone when the next version is due.
_PASSING = (OSError, StateError, UnavailableError, WriterLockedError)


class ShardSender:
    """The part of a rank that does not write, if tables are sharded."""

    def __init__(self, bindings: Sequence[TableBinding]) -> None:
        """Sends nothing yet. `bindings`: the tables of the model."""
        self._bindings = bindings

    def begin(self) -> None:
        """Sends the rows of this node's shards to the rank that writes."""
        with contextlib.suppress(*_PASSING):  # the rank that writes warns
            ShardCollection(self._bindings, CALL).send()

    @property
    def is_writing(self) -> bool:
        """Whether a version is being written by this rank: never."""
        return False

    def close(self) -> None:
        """Does nothing."""


class Published(NamedTuple):
    """A version that has appeared."""

    path: Path
    step: int
    seconds: float
    """The time from the step to the rename."""


class Publisher:
    """Writes the versions of a directory, one after another. Only the rank that writes uses it.

    Attributes:
      published: The versions that have appeared.
    """

    def __init__(
        self,
        model: Any,
        bindings: Sequence[TableBinding],
        directory: Path,
        *,
        keep: int,
        options: Options,
        signatures: Mapping[str, Any] | None,
    ) -> None:
        """Reads and writes nothing.

        Args:
          model: The Keras model.
          bindings: Its tables.
          directory: The directory of versions.
          keep: The number of versions to keep.
          options: How tables are exported.
          signatures: As for `tsps.export`.
        """
        self._model, self._bindings, self._directory = model, bindings, directory
        self._keep, self._options, self._signatures = keep, options, signatures
        self._graph: ModelGraph | None = None
        self._base_writer = BaseWriter(directory)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.published: list[Published] = []

    @property
    def is_writing(self) -> bool:
        """Whether a version is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        """Captures the model as it is, and begins to write a version. Call it between two steps, if none is written.

        If tables are sharded, all other ranks call `ShardSender.begin` meanwhile. The first call traces the model,
        which takes longer.
        """
        self.wait()
        try:
            self._begin()
        except _PASSING as error:
            self._error = error
            self.wait()

    def _begin(self) -> None:
        began = time.monotonic()
        shards = ShardCollection(self._bindings, CALL)
        with contextlib.ExitStack() as within:
            with shards.telling_others():
                number = max((number for number, _ in numbered(self._directory)), default=0) + 1
                builder = within.enter_context(VersionBuilder(self._directory / str(number), f"rank {WRITER}"))
                tables = CapturedTables(
                    self._bindings, self._newest(), self._options, shards=shards, base_writer=self._base_writer
                )
                within.callback(tables.close)
                tables.begin(builder)
            values: Values | None = None
            if self._graph is None:
                self._graph = ModelGraph.write(self._model, builder.folder, self._signatures, tables.assets)
            else:
                values = self._graph.values()
            arguments = (within.pop_all(), builder, tables, self._graph, values, began)
        self._thread = threading.Thread(target=self._run, args=arguments, name="tsps-export")
        self._thread.start()

    def wait(self) -> None:
        """Waits for the version that is being written. Warns if it could not be written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            warnings.warn(
                f"a version of the model was not written to {self._directory}: {type(error).__name__}: {error}. "
                "Training continues, and the next version is tried again",
                stacklevel=3,
            )

    def close(self) -> None:
        """Waits as `wait` does, and ends the writing of new bases."""
        self.wait()
        self._base_writer.close()

    def _newest(self) -> Version | None:
        try:
            return newest(self._directory)
        except TableError:  # there is none, or it is damaged
            return None

    def _run(
        self,
        within: contextlib.ExitStack,
        builder: VersionBuilder,
        tables: CapturedTables,
        graph: ModelGraph,
        values: Values | None,
        began: float,
    ) -> None:
        lower_priority()
        try:
            with within:
                if values is not None:
                    graph.write_again(builder.folder, values)
                fault_points.reach("model_saved")
                builder.finish(graph.manifest(tables.step, tables.write(builder, show_progress=False)))
            self.published.append(Published(builder.path, tables.step, time.monotonic() - began))
            retention.prune(self._directory, self._keep)
            self._base_writer.begin(Version(builder.path))
        except Exception as error:
            self._error = error
