"""`ShardedContent`: the rows of a sharded table, sent between the ranks in chunks.

All ranks iterate together. The leader of each node reads its shard and sends it, one node after another. In addition to
the rows that it keeps, a rank needs memory for a few chunks only. Before each chunk, all ranks learn whether one of
them has failed. If so, all of them stop, and none waits for another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import _table, job
from tf_sparse_ps.collectives.all_or_none import UNREACHABLE, all_or_none, error_text, must_agree, raise_failures
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.table.scan import Block

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.table.scan import Scan

# The size of a chunk. A process has a chunk in several forms: packed, as a tensor, received, and as arrays.
CHUNK_BYTES = 8 << 20
_COLLECTIVE_COPIES = 4  # additional copies of a chunk in TensorFlow's collectives
_SMALLEST = 1 << 12


class ShardedContent:
    """The rows of a table, at one step: all, or those that have changed. Iterate to the end, once, in its `with` block.

    Attributes:
      step: The step of the rows.
      erased: The keys that were erased since the marks, int64[m]. None: these are all rows.
      optimizer: The optimizer of the slots, as the core describes it.
      trained_by: The identity of the optimizer that made the slots, 0 if it is unknown, and its number of steps.
    """

    def __init__(
        self, binding: TableBinding, call: str, *, slots: bool, to: int | None = None, since: str | None = None
    ) -> None:
        """Begins the iteration. Every rank calls it.

        Args:
          binding: The table, which is sharded.
          call: The operation, for messages. Ranks compare it.
          slots: Whether the blocks contain the slots.
          to: The rank that receives the rows; None: all ranks. Other ranks iterate, too, but get no blocks.
          since: On a leader, a mark of its node's shard. If all leaders give one, and all shards know what has changed
            since, the rows are those that have changed.

        Raises:
          ValueError: Ranks make different operations.
          StateError: The shard of a node cannot be read, or the shards are at different steps.
        """
        self._job = job.current()
        self._ranks, self._to = self._job.collectives, to
        self._binding, self._slots = binding, slots
        self._scan: Scan | None = None
        self._finished = False
        call = f"{call} of table {binding.ordinal} ('{binding.config.name}')"
        facts = {"call": call, "slots": str(slots), "receiver": str(to)}
        try:
            everyone = all_or_none(self._ranks, lambda: (facts, self._begin(since)), call, "tsps.content.begin")
            must_agree([facts for facts, _ in everyone])
            shards = [everyone[leader][1] for leader in self._job.leaders]
            erased = [shard["erased"] for shard in shards]
            if any(keys is None for keys in erased) and any(keys is not None for keys in erased):
                everyone = all_or_none(
                    self._ranks, lambda: (facts, self._begin(None)), call, "tsps.content.begin_with_all"
                )
                shards = [everyone[leader][1] for leader in self._job.leaders]
                erased = [None]
            if any(shard[name] != shards[0][name] for shard in shards for name in ("step", "optimizer", "trained_by")):
                raise StateError(
                    f"{call}: the shards of the nodes differ in step or optimizer. Restore a checkpoint. Received: "
                    f"{shards}"
                )
        except Exception:
            self._close()
            raise
        self._rows = [int(shard["rows"]) for shard in shards]
        self._call = call
        self.erased = None if erased[0] is None else np.concatenate(erased)
        self.step, self.optimizer = int(shards[0]["step"]), dict(shards[0]["optimizer"])
        self.trained_by: tuple[int, int] = shards[0]["trained_by"]
        dim = binding.config.dim
        self._widths = [dim, *(_table.slot_widths(self.optimizer["kind"], dim) if slots else [])]
        self._record = 8 + 4 * sum(self._widths)

    def _begin(self, since: str | None) -> dict[str, Any]:
        """Opens the scan of this node's shard on its leader, and describes it for the other ranks."""
        if not self._job.is_leader:
            return {}
        self._close()
        self._scan = scan = self._binding.reader().scan(slots=self._slots, since=since)
        return {
            "rows": len(scan),
            "step": scan.step,
            "optimizer": scan.optimizer,
            "trained_by": scan.trained_by,
            "erased": scan.erased,
        }

    @property
    def receives(self) -> bool:
        """Whether this rank receives the rows."""
        return self._to in (None, self._ranks.rank)

    def __len__(self) -> int:
        """Returns the number of rows of the table, also if only some of them have changed."""
        return sum(self._rows)

    def __iter__(self) -> Iterator[Block]:
        chunk = CHUNK_BYTES // (1 if self._ranks.kind == "horovod" else _COLLECTIVE_COPIES)
        chunk_rows = max(1, chunk // self._record)
        for rows, leader in zip(self._rows, self._job.leaders, strict=True):
            left = rows
            while True:
                n = 0
                packed: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
                error: Exception | None = None
                if self._ranks.rank == leader:
                    try:
                        n, packed = self._pack(min(chunk_rows, left))
                    except Exception as caught:
                        error = caught
                n = self._agree(error, n)
                if n == 0:
                    break
                left -= n
                received = self._send(packed, n * self._record, leader)
                if self.receives:
                    yield self._unpack(received, n)
            if left and self.erased is None:
                self._agree(StateError(f"table {self._binding.path} has fewer rows than its scan began with"))
        self._agree(None)
        self._finished = True

    def __enter__(self) -> ShardedContent:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._close()
        if self._finished or isinstance(error, UNREACHABLE):
            return
        # This rank has stopped, because of an error or before the end. This call stops the other ranks, too.
        with contextlib.suppress(Exception):
            self._agree(error or StateError("not all rows were read"))

    def _close(self) -> None:
        if self._scan is not None:
            self._scan.close()

    # --- the exchange of each chunk between all ranks ---

    def _agree(self, error: BaseException | None, n: int = 0) -> int:
        """Exchanges whether a rank has failed, and the size of the next chunk.

        Args:
          error: The error of this rank.
          n: The number of rows that this rank sends next; 0 on all other ranks.

        Returns:
          The `n` of the rank that sends.

        Raises:
          StateError, or `error` itself: A rank has failed.
        """
        own_state = tf.constant([int(error is not None), n])
        (sums,) = self._ranks.allreduce([own_state], "tsps.content.go_on", average=False)
        failed, n = map(int, sums)
        if failed:
            self._finished = True  # all ranks stop here
            texts = self._ranks.allgather_object(error_text(error), "tsps.content.failed")
            raise_failures(texts, error, self._call)
        return n

    def _send(self, packed: npt.NDArray[np.uint8], n: int, leader: int) -> npt.NDArray[np.uint8]:
        """Sends `n` bytes from a leader to the ranks that receive the rows.

        Horovod sends them to one rank by an all-to-all. TensorFlow's all-to-all pads the data of every pair of ranks to
        the largest part, so with TensorFlow all ranks receive the bytes by a broadcast, and the others drop them.
        """
        size = _padded(n)
        if self._to is not None and self._ranks.kind == "horovod":
            splits = np.zeros(self._ranks.size, np.int32)
            splits[self._to] = len(packed)
            received, _ = self._ranks.alltoall(tf.constant(packed), tf.constant(splits), "tsps.content.rows")
        else:
            buffer = np.zeros(size, np.uint8)
            buffer[: len(packed)] = packed
            received = self._ranks.broadcast(tf.constant(buffer), leader, "tsps.content.all_rows")
        data: npt.NDArray[np.uint8] = received.numpy()
        return data

    # --- chunks ---

    def _pack(self, at_most: int) -> tuple[int, npt.NDArray[np.uint8]]:
        """Packs the next rows of this node: their keys, then the rows, then each slot. Also returns their number."""
        assert self._scan is not None
        parts: list[Block] = []
        n = 0
        while n < at_most:
            block = self._scan.take(at_most - n)
            if not len(block.keys):
                break
            parts.append(block)
            n += len(block.keys)
        planes: list[list[npt.NDArray[Any]]] = [[part.keys for part in parts], [part.rows for part in parts]]
        planes += [[part.slots[k] for part in parts] for k in range(len(self._widths) - 1)]
        packed = np.empty(sum(array.nbytes for plane in planes for array in plane), np.uint8)
        end = 0
        for plane in planes:
            for array in plane:
                packed[end : end + array.nbytes] = array.reshape(-1).view(np.uint8)
                end += array.nbytes
        return n, packed

    def _unpack(self, data: npt.NDArray[np.uint8], n: int) -> Block:
        keys = data[: 8 * n].view(np.int64)
        floats, end, values = data[8 * n : n * self._record].view(np.float32), 0, []
        for width in self._widths:
            values.append(floats[end : end + n * width].reshape(n, width))
            end += n * width
        return Block(keys, values[0], tuple(values[1:]), {})


def _padded(n: int) -> int:
    """Rounds up to a power of two, because each size needs a graph."""
    return max(_SMALLEST, 1 << (n - 1).bit_length())
