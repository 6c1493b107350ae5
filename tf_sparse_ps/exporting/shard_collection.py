"""`ShardCollection`: brings the rows of sharded tables to the rank that writes a version."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tf_sparse_ps import job
from tf_sparse_ps.checkpoints import tables as model_tables
from tf_sparse_ps.collectives.all_or_none import all_or_none, error_text, raise_failures
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers.sharded_content import ShardedContent
from tf_sparse_ps.serving.table_files import CollectedRows

WRITER = 0  # the rank that writes versions

# Takes the rows of a table.
Collect = Callable[[TableBinding, ShardedContent], CollectedRows]


class Collected(NamedTuple):
    """The rows of a sharded table on the writer."""

    rows: CollectedRows
    marks: list[str]
    """For each node, the mark of the state that the rows have."""


class ShardCollection:
    """Brings the rows of sharded tables to the rank that writes. All ranks take part, between two steps.

    The writer calls `receive` within `telling_others`, and all other ranks call `send` meanwhile. Without sharded
    tables, these methods do nothing.
    """

    def __init__(self, bindings: Sequence[TableBinding], call: str) -> None:
        """Sends nothing yet.

        Args:
          bindings: The tables of the model. Those that are not sharded are passed over.
          call: The operation, for messages, the same on all ranks.
        """
        self._bindings = [binding for binding in bindings if binding.placement == "sharded"]
        self._call = call
        self._have_failed_together = False

    def __bool__(self) -> bool:
        """Whether any table is sharded."""
        return bool(self._bindings)

    @contextlib.contextmanager
    def telling_others(self) -> Iterator[None]:
        """Surrounds what the writer does. If it fails, the ranks that call `send` learn that, and fail, too."""
        try:
            yield
        except Exception as error:
            if not self._have_failed_together:
                self._agree(error)
            raise
        self._agree(None)

    @contextlib.contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Surrounds a collective operation whose errors all ranks raise."""
        self._agree(None)
        self._have_failed_together = True
        yield
        self._have_failed_together = False

    def _agree(self, error: Exception | None) -> None:
        """Raises on all ranks if the writer has failed."""
        if self._bindings:
            self._have_failed_together = error is not None
            texts = job.current().collectives.allgather_object(error_text(error), "tsps.export.agree")
            raise_failures(texts, error, self._call)

    def receive(
        self, since: Mapping[str, Sequence[str | None]], marks: Mapping[str, str], collect: Collect
    ) -> dict[str, Collected]:
        """Receives the rows of all sharded tables. Only the writer calls it.

        Args:
          since: For each table by its uuid, and for each node, the mark of the state that an earlier version has, or
            None for all rows.
          marks: The marks of this node's tables as they are, by the tables' uuids.
          collect: Takes the rows of a table.

        Returns:
          What was collected, by the tables' uuids.

        Raises:
          StateError: Another rank has failed.
        """
        if not self._bindings:
            return {}
        wanted = [list(since[binding.uuid]) for binding in self._bindings]
        wanted, marks_of_nodes = self._exchange(wanted, lambda: marks)
        collected = {}
        for number, binding in enumerate(self._bindings):
            with self._failing_together(), self._content(binding, wanted[number]) as content:
                collected[binding.uuid] = Collected(collect(binding, content), marks_of_nodes[number])
        return collected

    def send(self) -> None:
        """Sends the rows of this node's shards to the writer. All other ranks call it.

        Raises:
          StateError: Another rank has failed.
        """
        if not self._bindings:
            return
        wanted, _ = self._exchange([], lambda: model_tables.mark_changes(self._bindings))
        for number, binding in enumerate(self._bindings):
            self._agree(None)
            with self._content(binding, wanted[number]) as content:
                for _ in content:
                    raise AssertionError("this rank receives no rows")
        self._agree(None)

    def _exchange(
        self, wanted: list[list[str | None]], mark: Callable[[], Mapping[str, str]]
    ) -> tuple[list[list[str | None]], list[list[str]]]:
        """Gives all ranks the writer's marks, and the writer the new marks of all nodes: for each table, by node."""
        this_job = job.current()

        def new_marks() -> list[str]:
            marks = mark()
            return [marks[binding.uuid] for binding in self._bindings]

        with self._failing_together():
            everyone = all_or_none(
                this_job.collectives,
                lambda: (wanted, new_marks() if this_job.is_leader else []),
                self._call,
                "tsps.export.marks",
            )
        new = [everyone[leader][1] for leader in this_job.leaders]
        return everyone[WRITER][0], [[marks[k] for marks in new] for k in range(len(self._bindings))]

    def _content(self, binding: TableBinding, wanted: Sequence[str | None]) -> ShardedContent:
        this_job = job.current()
        return ShardedContent(binding, self._call, slots=False, to=WRITER, since=wanted[this_job.node])
