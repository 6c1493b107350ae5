"""What all ranks of a job do together outside of steps with tables that are spread over its nodes.

- `CollectiveSave`: rank 0 saves, and asks for the rows of one table after another; the others send them.
- `fill`: a table gets rows of an initializer that makes a whole matrix, which rank 0 calls.
- `loading`: all ranks give a table the same rows, of which each node keeps its own.

A rank that does one of them alone waits for the others, for TFSPS_TIMEOUT_S; then the job's liveness check names them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import _table, failures, job
from tf_sparse_ps.collectives.all_or_none import UNREACHABLE, all_or_none, error_text, must_agree, raising_on_all
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.job.table_binding import number_of
from tf_sparse_ps.layers.sharded_content import CHUNK_BYTES, ShardedContent
from tf_sparse_ps.table.arrays import checksum

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding

WRITER = 0  # of a save
_END = "end"
_sharded: weakref.WeakValueDictionary[int, TableBinding] = weakref.WeakValueDictionary()


def register(binding: TableBinding) -> None:
    """Makes a table one that can be asked for. Every rank calls it, when it has made the table."""
    if binding.placement != "sharded":
        return
    this_job = job.current()
    failures.report(this_job.collectives, lambda: int(_table.Group.open(this_job.group_path).info()["step"]) + 1)
    _sharded[binding.ordinal] = binding


def any_sharded() -> bool:
    """Whether this process has such a table."""
    return len(_sharded) > 0


class CollectiveSave:
    """A save of something with such tables, between two steps. Every rank makes one, then rank 0 saves.

    Attributes:
      writes: Whether this rank saves.
      written_to: The writer's path.
    """

    def __init__(self, path: str) -> None:
        """Meets the other ranks. `path`: Where this rank was told to save to; the writer's counts."""
        self._ranks = job.current().collectives
        self.writes = self._ranks.rank == WRITER
        self.written_to = str(self._ranks.allgather_object(path, "tsps.save")[WRITER])
        self._ended = False

    def content(self, binding: TableBinding, *, slots: bool) -> ShardedContent:
        """All rows of a table: the writer asks for them."""
        self._ranks.broadcast_object((binding.ordinal, slots), WRITER, "tsps.save.next")
        return self._content(binding, slots)

    def end(self, error: BaseException | None) -> None:
        """The writer has saved, or could not."""
        if not self._ended and not isinstance(error, UNREACHABLE):
            self._ranks.broadcast_object((_END, error_text(error)), WRITER, "tsps.save.next")
        self._ended = True

    def serve(self) -> None:
        """Sends the writer what it asks for, until it has saved.

        Raises:
          StateError: It could not save, with the reason.
        """
        failed: Exception | None = None
        while True:
            what, detail = self._ranks.broadcast_object(None, WRITER, "tsps.save.next")
            if what == _END:
                break
            try:
                with self._content(_sharded[what], detail) as content:
                    for _ in content:
                        pass
            except UNREACHABLE:
                raise
            except Exception as error:  # the writer has it, too, and will say that it ends
                failed = error
        if failed is not None:
            raise failed
        if detail is not None:
            raise StateError(f"rank {WRITER} could not save to {self.written_to}: {detail}")

    def _content(self, binding: TableBinding, slots: bool) -> ShardedContent:
        return ShardedContent(binding, f"saving to {self.written_to}", slots=slots, to=WRITER)


def fill(binding: TableBinding) -> None:
    """Gives a table that was just made the rows that its initializer makes all at once, if it is such a one.

    Every rank calls it. Rank 0's matrix counts, and passes in chunks.

    Raises:
      StateError: Rank 0 could not make the matrix; or some nodes have the table of an earlier run of the job.
    """
    values = binding.config.resolved_initializer().values
    if binding.placement != "sharded" or values is None or binding.weights_checksum:
        return
    this_job = job.current()
    ranks, dim, limit = this_job.collectives, binding.config.dim, binding.config.key_limit or 0
    step = this_job.group.committed_step()
    makes_matrix = ranks.rank == WRITER and (binding.needs_initial_matrix or step == 0)
    matrix: npt.NDArray[np.float32] = np.empty((0, dim), np.float32)

    def begin() -> tuple[bool, int]:
        nonlocal matrix
        if makes_matrix:
            matrix = values()
        return binding.needs_initial_matrix, step

    call = f"making table {binding.ordinal} ('{binding.config.name}')"
    everyone = all_or_none(ranks, begin, call, "tsps.fill.begin")
    unfilled = [everyone[leader][0] for leader in this_job.leaders]
    error: Exception | None = None
    # At step 0 an earlier run was killed while nodes wrote these rows: all of them write them again.
    trained = any(everyone[leader][1] > 0 for leader in this_job.leaders)
    if trained and any(unfilled) != all(unfilled):
        raise StateError(f"{call}: nodes {np.flatnonzero(np.logical_not(unfilled)).tolist()} have it of an earlier run")
    at_once = max(1, CHUNK_BYTES // (4 * dim))
    with loading(binding, "making", {}), binding.writing(number_of("filled")) as writes:
        for start in range(0, limit if any(unfilled) else 0, at_once):
            keys = np.arange(start, min(limit, start + at_once), dtype=np.int64)
            part = matrix[keys] if ranks.rank == WRITER else np.zeros((len(keys), dim), np.float32)
            rows = ranks.broadcast(tf.constant(part), WRITER, "tsps.fill.rows").numpy()
            if writes and error is None:
                try:
                    binding.write_rows(keys, rows)
                except Exception as caught:  # the others go on
                    error = caught
        if error is not None:
            raise error
    binding.needs_initial_matrix = False


@contextlib.contextmanager
def loading(binding: TableBinding, call: str, facts: Mapping[str, str]) -> Iterator[None]:
    """Surrounds what gives a table rows from outside: of a sharded one all ranks come here, or none.

    Args:
      binding: Of the table.
      call: What is being done.
      facts: What must be equal on all ranks.

    Raises:
      ValueError: Ranks do different things, or with different values.
      StateError: Another rank failed; its nodes' rows may be old and new ones: load again.
    """
    if binding.placement != "sharded":
        yield
        return
    ranks = job.current().collectives
    call = f"{call} of table {binding.ordinal} ('{binding.config.name}')"
    with tf.init_scope():  # a checkpoint that was restored before the layer was built: Keras may be tracing
        must_agree(ranks.allgather_object({"call": call, **facts}, "tsps.load"))
    with raising_on_all(ranks, call, "tsps.loaded"):
        yield


def digest(array: npt.NDArray[Any]) -> str:
    """Tells an array from others."""
    return f"{array.dtype.name}{list(array.shape)}, checksum {checksum(array)}"
