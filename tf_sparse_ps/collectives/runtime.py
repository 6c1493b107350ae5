"""Collectives by TensorFlow's own collective runtime (checked: TensorFlow 2.15 and 2.21, on CPUs).

Something else has connected the processes: a strategy (`tf_distribute.py`), or we have (`tensorflow.py`). The
operations here are the runtime's own ops, in groups of ours.

How an operation meets the same one of the other ranks, and no other:

- An op is told a group key and an instance key. Ours lie far above TensorFlow's, which count from 1 and 100. The
  instance key is a digest of the operation's name, so it is the same on all ranks whatever the order of tracing; two
  names of one key in a process are an error.
- The runtime remembers the shape of an instance, and refuses another one. Where sizes change from step to step the key
  therefore holds the size: what is sent is padded to one of few sizes, an eighth apart at most, known to all ranks
  because they gather their sizes first.
- The runtime numbers the members of a group by itself (by text, worker 10 before worker 2), so they tell each other
  their ranks when the group is made.
- TensorFlow holds these ops stateful: they are not folded, merged or dropped. Each name has a variable as ordering
  token: automatic control dependencies then keep a name from being twice in flight, and leave operations of different
  names free of each other.
- The kernels wait without a thread, and an eager call is the op itself.

A rank that dies closes its connections, which ends all operations of the others with an error. One that is late or
stopped ends them after TFSPS_TIMEOUT_S (`operation_timeout.py`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import eager_operations, operation_timeout
from tf_sparse_ps.collectives.processes import ProcessCollectives, floats_only
from tf_sparse_ps.errors import CollectivesError
from tf_sparse_ps.node import job_folder, node_discovery

ALL_RANKS = 0x54530000  # the group key of all ranks; those of subsets follow from their ranks
# Instance keys. Of operations whose sizes never change: 30 bits of their names' digests above this.
_FIXED = 1 << 30
# Of others: 21 bits, and 8 bits that say which size.
_SIZED, _SIZE_BITS = 1 << 29, 8
# Of buffers, in words of 4 bytes: all up to 8, then 8 per power of 2.
_SIZES = [*range(1, 9), *(k << e for e in range(28) for k in range(9, 17))]
assert len(_SIZES) < 1 << _SIZE_BITS
# What the runtime adds up, and what other types are added up as: modulo their width, as they would be by themselves.
_ADDED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
_ADDED_AS = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}


class RuntimeCollectives(ProcessCollectives):
    """Ranks that TensorFlow's runtime has connected."""

    # How much later than TFSPS_TIMEOUT_S operations fail: who names the rank that is missing is given the time.
    grace_s = 0.0

    def __init__(self, device: str, rank: int, size: int, group: int, keys: dict[int, str]) -> None:
        """Meets the other ranks.

        Args:
          device: This process's CPU, in the runtime's full form.
          rank: The worker's rank.
          size: Number of ranks.
          group: The runtime's key of these ranks.
          keys: Names by instance key, of the whole process.
        """
        super().__init__()
        self.rank, self.size = rank, size
        self.local_rank, self.local_size, self.cross_rank, self.cross_size = 0, 1, rank, size
        self._device, self._group, self._keys = device, group, keys
        self._lock = threading.RLock()
        self._tokens: dict[str, tf.Variable] = {}
        self._members = list(range(size))  # the rank of each member, in the runtime's order
        if size > 1:
            operation_timeout.start(rank, self.grace_s)
            numbers = self._eager("tsps.members", lambda: self._gather(tf.constant([rank]), "tsps.members", 0))
            self._members = [int(number) for number in numbers.numpy()]
        self._positions = [self._members.index(one) for one in range(size)]

    def find_nodes(self) -> None:
        """Finds out which ranks share this one's machine. Every rank calls it, before the first table.

        Ranks that see the same folder of tables on the same machine are one node: they share its tables.

        Raises:
          AccessError, NoSpaceError: From the folder of tables.
        """
        if self.size == 1:
            return
        self.host = node_discovery.same_folder(job_folder.prepare())
        hosts = self.allgather_object(self.host, "tsps.hosts")
        mine = [one for one in range(self.size) if hosts[one] == self.host]
        self.local_rank, self.local_size = mine.index(self.rank), len(mine)
        alike = [one for one in range(self.size) if hosts[:one].count(hosts[one]) == self.local_rank]
        self.cross_rank, self.cross_size = alike.index(self.rank), len(alike)

    # --- graph operations ---

    def allreduce(self, tensors: Sequence[tf.Tensor], name: str, *, average: bool = True) -> list[tf.Tensor]:
        """See `Collectives.allreduce`. One operation of the runtime per type of tensor."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if average:
            floats_only(tensors, name)
        if self.size == 1:
            return list(tensors)

        def reduce() -> list[tf.Tensor]:
            results: list[Any] = [None] * len(tensors)
            for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
                at = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
                for i, total in zip(at, self._sums([tensors[i] for i in at], name), strict=True):
                    results[i] = total / tf.cast(self.size, dtype) if average else total
            return results

        return self._eager(name, reduce)

    def allgather(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """See `Collectives.allgather`. Sizes first, then one buffer per rank, padded to the largest."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.size == 1 or not tensors:
            return list(tensors)

        def gather() -> list[tf.Tensor]:
            # Bytes of each tensor on each rank.
            flat = [_to_bytes(tensor, name) for tensor in tensors]
            sizes = self._gathered(tf.stack([tf.size(one, tf.int64) for one in flat]), f"{name}.sizes")
            buffers = self._exchange(tf.concat(flat, 0), tf.reduce_sum(sizes, axis=1), name)
            ends = tf.cumsum(sizes, axis=1)
            results = []
            for i, tensor in enumerate(tensors):
                pieces = [buffers[r][ends[r, i] - sizes[r, i] : ends[r, i]] for r in range(self.size)]
                results.append(_from_bytes(tf.concat(pieces, 0), tensor.dtype, _rows_of(tensor)))
                results[-1].set_shape([None, *tensor.shape[1:]])
            return results

        return self._eager(name, gather)

    def alltoall(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Collectives.alltoall`. Sizes first, then one buffer per pair of ranks, padded to the largest."""
        tensor, splits = tf.convert_to_tensor(tensor), tf.convert_to_tensor(splits, tf.int32)
        if self.size == 1:
            return tensor, splits

        def exchange() -> list[tf.Tensor]:
            flat = _to_bytes(tensor, name)
            width = tf.cast(tf.reduce_prod(_rows_of(tensor)[1:]), tf.int64) * tensor.dtype.size
            counts = self._gathered(tf.ensure_shape(splits, [self.size]), f"{name}.splits")
            sizes = tf.cast(counts, tf.int64) * width  # bytes[sender, receiver]
            words, which = _size_of(tf.reduce_max(sizes))
            ends = tf.cumsum(sizes[self.rank])
            sent = []
            for r in self._members:
                piece = flat[ends[r] - sizes[self.rank, r] : ends[r]]
                sent.append(tf.pad(piece, [[0, 4 * words - tf.size(piece, tf.int64)]]))
            received = self._op(
                tf.raw_ops.CollectiveAllToAllV2, _to_words(tf.stack(sent), [self.size, -1]), name, which
            )
            rows = tf.bitcast(received, tf.uint8)
            rows = tf.reshape(rows, [self.size, -1])
            pieces = [rows[self._positions[r]][: sizes[r, self.rank]] for r in range(self.size)]
            with tf.control_dependencies([received]):  # whoever has the counts knows that this rank's part is done
                from_ranks = tf.identity(counts[:, self.rank])
            return [_from_bytes(tf.concat(pieces, 0), tensor.dtype, _rows_of(tensor)), from_ranks]

        received, counts = self._eager(name, exchange)
        received.set_shape([None, *tensor.shape[1:]])
        return received, counts

    def broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        """See `Collectives.broadcast`. A sum of bits to which only the root contributes, as integers, hence exact."""
        tensor = tf.convert_to_tensor(tensor)
        if not 0 <= root < self.size:
            raise ValueError(f"broadcast '{name}': root must be a rank, 0 to {self.size - 1}. Received: {root}")
        if self.size == 1:
            return tensor

        def send() -> list[tf.Tensor]:
            flat = _to_bytes(tensor, name)
            size = tf.size(flat)
            words = _to_words(tf.pad(flat, [[0, -size % 4]]), [-1])
            if tensor.shape.is_fully_defined():
                words.set_shape([-(-tensor.shape.num_elements() * tensor.dtype.size // 4)])
            total = self._sum(words if self.rank == root else tf.zeros_like(words), name)
            bits = tf.reshape(tf.bitcast(total, tf.uint8), [-1])[:size]
            return [_from_bytes(bits, tensor.dtype, tf.shape(tensor))]

        (received,) = self._eager(name, send)
        received.set_shape(tensor.shape)
        return received

    def subset(self, ranks: Sequence[int]) -> RuntimeCollectives | None:
        """See `Collectives.subset`: a group of the runtime."""
        ranks = list(ranks)
        if ranks == list(range(self.size)):
            return self
        if self.rank not in ranks:
            return None
        group = ALL_RANKS + 1 + int.from_bytes(hashlib.sha256(repr(ranks).encode()).digest()[:3], "big")
        return type(self)(self._device, ranks.index(self.rank), len(ranks), group, self._keys)

    # --- inner workings ---

    def _sums(self, tensors: list[tf.Tensor], label: str) -> list[tf.Tensor]:
        """The sums over ranks of tensors of one type, sent together."""
        if len(tensors) == 1:
            return [self._sum(tensors[0], label)]
        counts = [one.shape.num_elements() for one in tensors]
        sizes = counts if None not in counts else tf.stack([tf.size(one) for one in tensors])
        total = self._sum(tf.concat([tf.reshape(one, [-1]) for one in tensors], 0), label)
        parts = tf.split(total, sizes, num=len(tensors))
        results = [tf.reshape(part, tf.shape(one)) for part, one in zip(parts, tensors, strict=True)]
        for result, one in zip(results, tensors, strict=True):
            result.set_shape(one.shape)
        return results

    def _sum(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """The sum over ranks of a tensor that has the same shape on all."""
        dtype = tensor.dtype
        if dtype == tf.uint64:
            return tf.bitcast(self._sum(tf.bitcast(tensor, tf.int64), label), tf.uint64)
        if dtype.name not in _ADDED:
            if dtype.name not in _ADDED_AS:
                raise TypeError(f"'{label}': tensors of type {dtype.name} cannot be added up over ranks")
            return tf.cast(self._sum(tf.cast(tensor, _ADDED_AS[dtype.name]), label), dtype)
        label = f"{label}.{dtype.name}"
        flat, n = tf.reshape(tensor, [-1]), tensor.shape.num_elements()
        if n == 0:
            return tensor
        if n is not None:
            total = self._op(_reduce, flat, f"{label}[{n}]", None)
        else:
            size = tf.size(flat, tf.int64)
            padded, which = _size_of(4 * size)
            total = self._op(_reduce, tf.pad(flat, [[0, padded - size]]), label, which)[:size]
        total = tf.reshape(total, tf.shape(tensor))
        total.set_shape(tensor.shape)
        return total

    def _gathered(self, numbers: tf.Tensor, label: str) -> tf.Tensor:
        """Integers of a fixed shape of all ranks, stacked in rank order."""
        stacked = self._gather(numbers[None], f"{label}.{numbers.dtype.name}{numbers.shape.as_list()}", None)
        return stacked if self._in_order else tf.gather(stacked, self._positions)

    def _exchange(self, flat: tf.Tensor, sizes: tf.Tensor, label: str) -> list[tf.Tensor]:
        """The bytes of all ranks, in rank order, each with padding behind; `sizes` int64[size] of them."""
        words, which = _size_of(tf.reduce_max(sizes))
        padded = tf.pad(flat, [[0, 4 * words - tf.size(flat, tf.int64)]])
        gathered = self._gather(_to_words(padded, [1, -1]), label, which)
        rows = tf.reshape(tf.bitcast(gathered, tf.uint8), [self.size, -1])
        return [rows[position] for position in self._positions]

    def _gather(self, rows: tf.Tensor, label: str, which: tf.Tensor | int | None) -> tf.Tensor:
        return self._op(tf.raw_ops.CollectiveGatherV2, rows, label, which)

    @property
    def _in_order(self) -> bool:
        return self._members == list(range(self.size))

    def _op(self, op: Callable[..., tf.Tensor], value: tf.Tensor, label: str, which: tf.Tensor | int | None) -> Any:
        """One operation of the runtime.

        Args:
          op: With the arguments that all have in common.
          value: What to send.
          label: Fixed, and what tells it from all others.
          which: int32, the size's number (`_size_of`) where sizes change; None where the label holds the shape.
        """
        digest = int.from_bytes(hashlib.sha256(f"{self._group}/{label}".encode()).digest()[:8], "big")
        key = _FIXED + digest % _FIXED if which is None else _SIZED + ((digest % (1 << 21)) << _SIZE_BITS)
        with self._lock:
            taken = self._keys.setdefault(key, f"{self._group}/{label}")
            if taken != f"{self._group}/{label}":
                raise RuntimeError(f"the names of two operations, {taken!r} and {label!r}, have one key: rename one")
            if label not in self._tokens:
                self._tokens[label] = _keras.local_variable(0, "int64", f"order.{label}")
            token = self._tokens[label]
        marked = not tf.executing_eagerly()
        with tf.device(self._device):
            if marked:
                name, variable = label.partition("[")[0], token.read_value()
                value = _ops.mark(value, name, "begin", variable)
            result = op(
                input=value,
                group_size=self.size,
                group_key=self._group,
                instance_key=key if which is None else key + which,
                ordering_token=[token.handle],
                timeout_seconds=0.0,  # see operation_timeout.py
            )
            token.assign_add(1)  # in a graph after the operation, which has the token, too
            return _ops.mark(result, name, "end", variable) if marked else result

    def _eager(self, name: str, build: Callable[[], Any]) -> Any:
        """Builds operations, on this worker's CPU; errors of the runtime in eager ones become a `CollectivesError`."""
        with tf.device(self._device):
            if not tf.executing_eagerly():
                return build()
            try:
                with eager_operations.running(name):
                    return build()
            except tf.errors.OpError as error:
                self.failed = True
                raise CollectivesError(f"collective '{name}' failed on rank {self.rank}: {error}") from error


def _reduce(**arguments: Any) -> tf.Tensor:
    return tf.raw_ops.CollectiveReduceV2(merge_op="Add", final_op="Id", **arguments)


def _size_of(n_bytes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The size to pad so many bytes to: words of 4 bytes, int64; and its number in `_SIZES`, int32."""
    sizes = tf.constant(_SIZES, tf.int64)
    which = tf.searchsorted(sizes, tf.reshape((n_bytes + 3) // 4, [1]))[0]
    return sizes[which], which


def _rows_of(tensor: tf.Tensor) -> tf.Tensor:
    """The shape of as many rows as there will be."""
    return tf.concat([[-1], tf.shape(tensor)[1:]], 0)


def _to_bytes(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """uint8[n]."""
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tensor, tf.uint8)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex):
        raise TypeError(f"'{name}': tensors of type {tensor.dtype.name} cannot be sent")
    return tf.reshape(tensor if tensor.dtype == tf.uint8 else tf.bitcast(tensor, tf.uint8), [-1])


def _from_bytes(data: tf.Tensor, dtype: tf.DType, shape: tf.Tensor) -> tf.Tensor:
    """The inverse of `_to_bytes`; `shape` may hold a -1."""
    if dtype == tf.bool:
        return tf.reshape(tf.cast(data, tf.bool), shape)
    if dtype != tf.uint8:
        data = tf.bitcast(tf.reshape(data, [-1, dtype.size]) if dtype.size > 1 else data, dtype)
    return tf.reshape(data, shape)


def _to_words(data: tf.Tensor, shape: Any) -> tf.Tensor:
    """Bytes as int32, the smallest type that the runtime sends."""
    return tf.reshape(tf.bitcast(tf.reshape(data, [-1, 4]), tf.int32), shape)
