"""`ShardedContent`: all rows of a table that is spread over nodes, which pass through collectives in chunks.

All ranks go through it together: each node's leader reads its shard and sends it, one node after another. What a rank
holds beside the rows that it keeps is a few chunks. Before each chunk ranks tell each other whether one of them has
failed: then all stop, and none waits for another.
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

# Of what is sent at once. A process has it a few times: packed, as a tensor, received, and cut into arrays.
CHUNK_BYTES = 8 << 20
_COPIES_MORE = 4  # of a chunk, that TensorFlow's collectives have
_SMALLEST = 1 << 12


class ShardedContent:
    """All rows of a table, as of one step. Within its `with` block it is to be read to the end, once.

    Attributes:
      step: Of the rows.
      optimizer: Whose slots the rows have, as the core says it.
      trained_by: Which optimizer made the slots, 0 if that is not known, and after how many of its steps.
    """

    def __init__(self, binding: TableBinding, call: str, *, slots: bool, to: int | None = None) -> None:
        """Begins. Every rank calls it.

        Args:
          binding: Of the table, which is sharded.
          call: What is being done, for messages and to be compared: all ranks do the same.
          slots: With slots.
          to: The rank that gets the rows; None: all do. The others iterate, too, and see no blocks.

        Raises:
          ValueError: Ranks do different things.
          StateError: A node's shard cannot be read, or shards are of different steps.
        """
        self._job = job.current()
        self._ranks, self._to = self._job.collectives, to
        self._binding, self._slots = binding, slots
        self._scan: Scan | None = None
        self._finished = False
        call = f"{call} of table {binding.ordinal} ('{binding.config.name}')"
        facts = {"call": call, "slots": str(slots), "who gets the rows": str(to)}
        try:
            everyone = all_or_none(self._ranks, lambda: (facts, self._begin()), call, "tsps.content.begin")
            must_agree([facts for facts, _ in everyone])
            shards = [everyone[leader][1] for leader in self._job.leaders]
            if any(shard[name] != shards[0][name] for shard in shards for name in ("step", "optimizer", "trained_by")):
                raise StateError(f"{call}: the nodes have it of different steps or optimizers, {shards}")
        except Exception:
            self._close()
            raise
        self._rows = [int(shard["rows"]) for shard in shards]
        self._call = call
        self.step, self.optimizer = int(shards[0]["step"]), dict(shards[0]["optimizer"])
        self.trained_by: tuple[int, int] = shards[0]["trained_by"]
        dim = binding.config.dim
        self._widths = [dim, *(_table.slot_widths(self.optimizer["kind"], dim) if slots else [])]
        self._record = 8 + 4 * sum(self._widths)

    def _begin(self) -> dict[str, Any]:
        """Opens the scan of this node's shard on its leader, and describes it for the other ranks."""
        if not self._job.is_leader:
            return {}
        self._scan = scan = self._binding.reader().scan(slots=self._slots)
        return {"rows": len(scan), "step": scan.step, "optimizer": scan.optimizer, "trained_by": scan.trained_by}

    @property
    def receives(self) -> bool:
        """Whether this rank gets the rows."""
        return self._to in (None, self._ranks.rank)

    def __len__(self) -> int:
        """Rows of the table."""
        return sum(self._rows)

    def __iter__(self) -> Iterator[Block]:
        chunk = CHUNK_BYTES // (1 if self._ranks.kind == "horovod" else _COPIES_MORE)
        at_once = max(1, chunk // self._record)
        for rows, leader in zip(self._rows, self._job.leaders, strict=True):
            left = rows
            while True:
                n = 0
                packed: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
                error: Exception | None = None
                if self._ranks.rank == leader:
                    try:
                        n, packed = self._pack(min(at_once, left))
                    except Exception as caught:
                        error = caught
                n = self._agree(error, n)
                if n == 0:
                    break
                left -= n
                received = self._send(packed, n * self._record, leader)
                if self.receives:
                    yield self._unpack(received, n)
            if left:
                self._agree(StateError(f"table {self._binding.path} has fewer rows than its scan began with"))
        self._agree(None)
        self._finished = True

    def __enter__(self) -> ShardedContent:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._close()
        if self._finished or isinstance(error, UNREACHABLE):
            return
        # The others are to stop, too: this rank has, because of an error or before the end.
        with contextlib.suppress(Exception):
            self._agree(error or StateError("not all rows were read"))

    def _close(self) -> None:
        if self._scan is not None:
            self._scan.close()

    # --- what all ranks do for each chunk ---

    def _agree(self, error: BaseException | None, n: int = 0) -> int:
        """Tells the others whether this rank has failed, and how many rows come next.

        Args:
          error: This rank's.
          n: Rows that this rank sends next; others give 0.

        Returns:
          The `n` of the rank that sends.

        Raises:
          StateError, or the error itself: A rank has failed.
        """
        own = tf.constant([int(error is not None), n])
        (found,) = self._ranks.allreduce([own], "tsps.content.go_on", average=False)
        failed, n = map(int, found)
        if failed:
            self._finished = True  # nobody goes on
            texts = self._ranks.allgather_object(error_text(error), "tsps.content.failed")
            raise_failures(texts, error, self._call)
        return n

    def _send(self, packed: npt.NDArray[np.uint8], n: int, leader: int) -> npt.NDArray[np.uint8]:
        """Sends `n` bytes of the leader to who gets them.

        To one rank alone by an all-to-all, where that takes no more than what is sent: TensorFlow's pads all pairs of
        ranks to the largest part, so that there the others receive what they drop.
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
        """The next rows of this node, and how many they are: their keys, then the rows, then slot after slot."""
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
    """A power of two: few sizes mean few graphs."""
    return max(_SMALLEST, 1 << (n - 1).bit_length())
