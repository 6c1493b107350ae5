"""Operations on sharded tables outside of steps, which all ranks of a job make together.

- `CollectiveSave`: rank 0 saves, and asks for the rows of one table after another. The other ranks send them.
- `fill`: rank 0 calls an initializer that makes a whole matrix, and the table gets its rows.
- `loading`: all ranks give a table the same rows. Each node keeps the rows that it owns.

A rank that makes one of them alone waits for TFSPS_TIMEOUT_S. Then the liveness check names the missing ranks.
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

WRITER = 0  # the rank that saves
_END = "end"
_sharded: weakref.WeakValueDictionary[int, TableBinding] = weakref.WeakValueDictionary()


def register(binding: TableBinding) -> None:
    """Registers a table, so that the writer of a save can ask for it. Every rank calls it after creating the table."""
    if binding.placement != "sharded":
        return
    this_job = job.current()
    failures.report(this_job.collectives, lambda: int(_table.Group.open(this_job.group_path).info()["step"]) + 1)
    _sharded[binding.ordinal] = binding


def any_sharded() -> bool:
    """Whether this process has a sharded table."""
    return len(_sharded) > 0


class CollectiveSave:
    """A save of sharded tables, between two steps. Every rank makes one, then rank 0 saves.

    Attributes:
      writes: Whether this rank saves.
      written_to: The path to which the writer saves.
    """

    def __init__(self, path: str) -> None:
        """Waits for the other ranks. `path`: the path of this rank; the writer's path is used."""
        self._ranks = job.current().collectives
        self.writes = self._ranks.rank == WRITER
        self.written_to = str(self._ranks.allgather_object(path, "tsps.save")[WRITER])
        self._ended = False

    def content(self, binding: TableBinding, *, slots: bool) -> ShardedContent:
        """Returns all rows of a table. The writer calls it."""
        self._ranks.broadcast_object((binding.ordinal, slots), WRITER, "tsps.save.next")
        return self._content(binding, slots)

    def end(self, error: BaseException | None) -> None:
        """Ends the save on the other ranks. The writer calls it, with the error if it could not save."""
        if not self._ended and not isinstance(error, UNREACHABLE):
            self._ranks.broadcast_object((_END, error_text(error)), WRITER, "tsps.save.next")
        self._ended = True

    def serve(self) -> None:
        """Sends rows to the writer until the writer has saved. The other ranks call it.

        Raises:
          StateError: The writer could not save. The message contains the reason.
        """
        failed: Exception | None = None
        while True:
            ordinal, detail = self._ranks.broadcast_object(None, WRITER, "tsps.save.next")
            if ordinal == _END:
                break
            try:
                with self._content(_sharded[ordinal], detail) as content:
                    for _ in content:
                        pass
            except UNREACHABLE:
                raise
            except Exception as error:  # the writer has the error, too, and ends the save
                failed = error
        if failed is not None:
            raise failed
        if detail is not None:
            raise StateError(f"rank {WRITER} could not save to {self.written_to}: {detail}")

    def _content(self, binding: TableBinding, slots: bool) -> ShardedContent:
        return ShardedContent(binding, f"saving to {self.written_to}", slots=slots, to=WRITER)


def fill(binding: TableBinding) -> None:
    """Fills a table that was just created, if it is sharded and its initializer makes a whole matrix.

    Every rank calls it. Rank 0 makes the matrix and broadcasts it in chunks.

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
    # At step 0, an earlier run was killed while nodes wrote these rows. All nodes write them again.
    trained = any(everyone[leader][1] > 0 for leader in this_job.leaders)
    if trained and any(unfilled) != all(unfilled):
        filled_nodes = np.flatnonzero(np.logical_not(unfilled)).tolist()
        raise StateError(
            f"{call}: nodes {filled_nodes} have this table of an earlier run, and other nodes do not. Delete the "
            "job's tables on all nodes, or use another TFSPS_JOB"
        )
    chunk_rows = max(1, CHUNK_BYTES // (4 * dim))
    with loading(binding, "making", {}), binding.writing(number_of("filled")) as writes:
        for start in range(0, limit if any(unfilled) else 0, chunk_rows):
            keys = np.arange(start, min(limit, start + chunk_rows), dtype=np.int64)
            part = matrix[keys] if ranks.rank == WRITER else np.zeros((len(keys), dim), np.float32)
            rows = ranks.broadcast(tf.constant(part), WRITER, "tsps.fill.rows").numpy()
            if writes and error is None:
                try:
                    binding.write_rows(keys, rows)
                except Exception as caught:  # the other ranks continue
                    error = caught
        if error is not None:
            raise error
    binding.needs_initial_matrix = False


def agree(binding: TableBinding, call: str, facts: Mapping[str, str]) -> str:
    """Compares what the ranks are about to do with a table, which is a collective call.

    Args:
      binding: The table.
      call: The operation, for messages.
      facts: Descriptions of it, by name, which must be equal on all ranks.

    Returns:
      The operation with the table, for further messages.

    Raises:
      ValueError: On all ranks: they make different operations.
    """
    call = f"{call} of table {binding.ordinal} ('{binding.config.name}')"
    with tf.init_scope():  # Keras may be tracing, if a checkpoint was restored before the layer was built
        must_agree(job.current().collectives.allgather_object({"call": call, **facts}, "tsps.load"))
    return call


@contextlib.contextmanager
def loading(binding: TableBinding, call: str, facts: Mapping[str, str]) -> Iterator[None]:
    """Surrounds a write of rows from outside. If the table is sharded, all ranks write together.

    Args:
      binding: The table.
      call: The operation, for messages.
      facts: Descriptions of the rows, by name, which must be equal on all ranks.

    Raises:
      ValueError: Ranks make different operations, or with different rows.
      StateError: Another rank failed. The table may have old and new rows: load again.
    """
    if binding.placement != "sharded":
        yield
        return
    call = agree(binding, call, facts)
    with raising_on_all(job.current().collectives, call, "tsps.loaded"):
        yield


def digest(array: npt.NDArray[Any]) -> str:
    """Describes an array for comparison: its dtype, shape and checksum."""
    return f"{array.dtype.name}{list(array.shape)}, checksum {checksum(array)}"
