"""Collectives over TensorFlow's own collective runtime (tested with TensorFlow 2.15 and 2.21, on CPUs).

A strategy (`tf_distribute.py`) or this library (`tensorflow.py`) has connected the processes before. The operations are
the runtime's own ops, with group keys and instance keys of this library.

An operation meets exactly the operation of the same name on the other ranks:

- Each op has a group key and an instance key. The keys are far above TensorFlow's, which count from 1 and 100. The
  instance key is a digest of the operation's name, so that it is the same on all ranks in any order of tracing. Two
  names with the same key in a process are an error.
- The runtime remembers the shape of an instance and refuses another shape. If sizes change from step to step, the key
  therefore contains the size. The data is padded to one of few sizes, which differ by an eighth at most. All ranks know
  the size, because they gather their sizes first.
- The runtime numbers the members of a group itself (it sorts by text: worker 10 comes before worker 2). So the members
  tell each other their ranks when the group is made.
- TensorFlow treats these ops as stateful: it does not fold, merge or drop them. Each name has a variable as ordering
  token. Thanks to automatic control dependencies, a name is never in flight twice, and operations with different names
  do not wait for each other.
- The kernels wait without holding a thread, and an eager call runs the op directly.

A rank that dies closes its connections, which ends all operations of the others with an error. A rank that is late or
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
from tf_sparse_ps.collectives.processes import ProcessCollectives, by_type
from tf_sparse_ps.errors import CollectivesError
from tf_sparse_ps.node import job_folder, node_discovery

ALL_RANKS = 0x54530000  # the group key of all ranks; the keys of subsets are digests of their ranks
# Instance keys of operations with fixed sizes: this number plus 30 bits of the digest of the name.
_FIXED = 1 << 30
# Instance keys of other operations: this number plus 21 bits of the digest and 8 bits for the number of the size.
_SIZED, _SIZE_BITS = 1 << 29, 8
# The sizes of buffers, in words of 4 bytes: all sizes up to 8, then 8 sizes per power of 2.
_SIZES = [*range(1, 9), *(k << e for e in range(28) for k in range(9, 17))]
assert len(_SIZES) < 1 << _SIZE_BITS
# The types that the runtime can add up, and the types as which other types are added up. The sums of those are correct,
# because integers wrap around modulo their width.
_ADDED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
_ADDED_AS = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}


class RuntimeCollectives(ProcessCollectives):
    """The collectives of ranks that TensorFlow's runtime has connected."""

    # Operations fail this many seconds after TFSPS_TIMEOUT_S, so that the ranks have time to name the missing rank.
    grace_s = 0.0

    def __init__(self, device: str, rank: int, size: int, group: int, keys: dict[int, str]) -> None:
        """Meets the other ranks.

        Args:
          device: The full name of this process's CPU device.
          rank: The rank of this process.
          size: The number of ranks.
          group: The group key of these ranks.
          keys: The names of all operations of the process, by instance key.
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
        self._positions = [self._members.index(r) for r in range(size)]

    def find_nodes(self) -> None:
        """Finds out which ranks are on this rank's node. Every rank calls this before the first table is made.

        Ranks that see the same folder of tables on the same machine form a node and share its tables.

        Raises:
          AccessError, NoSpaceError: The folder of tables cannot be used.
        """
        if self.size == 1:
            return
        self.host = node_discovery.same_folder(job_folder.prepare())
        hosts = self.allgather_object(self.host, "tsps.hosts")
        on_node = [rank for rank in range(self.size) if hosts[rank] == self.host]
        self.local_rank, self.local_size = on_node.index(self.rank), len(on_node)
        across = [rank for rank in range(self.size) if hosts[:rank].count(hosts[rank]) == self.local_rank]
        self.cross_rank, self.cross_size = across.index(self.rank), len(across)

    # --- graph operations ---

    def _allreduce(self, tensors: list[tf.Tensor], name: str, average: bool) -> list[tf.Tensor]:
        """Runs one operation of the runtime per type of tensor."""

        def reduce(group: list[tf.Tensor]) -> list[tf.Tensor]:
            sums = self._sums(group, name)
            return [total / tf.cast(self.size, total.dtype) for total in sums] if average else sums

        return self._eager(name, lambda: by_type(tensors, reduce))

    def _allgather(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Gathers the sizes, then one buffer per rank, padded to the largest."""

        def gather() -> list[tf.Tensor]:
            flat = [_to_bytes(tensor, name) for tensor in tensors]
            with tf.control_dependencies(flat):  # TensorFlow may know the sizes before there are tensors
                counts = tf.stack([tf.size(data, tf.int64) for data in flat])
            sizes = self._gathered(counts, f"{name}.sizes")
            buffers = self._exchange(tf.concat(flat, 0), tf.reduce_sum(sizes, axis=1), name)
            ends = tf.cumsum(sizes, axis=1)
            results = []
            for i, tensor in enumerate(tensors):
                pieces = [buffers[r][ends[r, i] - sizes[r, i] : ends[r, i]] for r in range(self.size)]
                results.append(_from_bytes(tf.concat(pieces, 0), tensor.dtype, _rows_of(tensor)))
            return results

        return self._eager(name, gather)

    def _alltoall(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> list[tf.Tensor]:
        """Gathers the sizes, then sends one buffer per pair of ranks, padded alike."""

        def exchange() -> list[tf.Tensor]:
            flat = _to_bytes(tensor, name)
            width = tf.cast(tf.reduce_prod(_rows_of(tensor)[1:]), tf.int64) * tensor.dtype.size
            counts = self._gathered(tf.ensure_shape(splits, [self.size]), f"{name}.splits")
            sizes = tf.cast(counts, tf.int64) * width  # bytes[sender, receiver]
            words, size_number = _size_of(tf.reduce_max(sizes))
            ends = tf.cumsum(sizes[self.rank])
            sent = []
            for r in self._members:
                piece = flat[ends[r] - sizes[self.rank, r] : ends[r]]
                sent.append(tf.pad(piece, [[0, 4 * words - tf.size(piece, tf.int64)]]))
            received = self._op(
                tf.raw_ops.CollectiveAllToAllV2, _to_words(tf.stack(sent), [self.size, -1]), name, size_number
            )
            rows = tf.bitcast(received, tf.uint8)
            rows = tf.reshape(rows, [self.size, -1])
            pieces = [rows[self._positions[r]][: sizes[r, self.rank]] for r in range(self.size)]
            with tf.control_dependencies([received]):  # the counts are available when this rank's part is done
                from_ranks = tf.identity(counts[:, self.rank])
            return [_from_bytes(tf.concat(pieces, 0), tensor.dtype, _rows_of(tensor)), from_ranks]

        return self._eager(name, exchange)

    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        """Adds up the bits as integers, which is exact; only the root adds nonzeros."""

        def send() -> tf.Tensor:
            flat = _to_bytes(tensor, name)
            size = tf.size(flat)
            words = _to_words(tf.pad(flat, [[0, -size % 4]]), [-1])
            if tensor.shape.is_fully_defined():
                words.set_shape([-(-tensor.shape.num_elements() * tensor.dtype.size // 4)])
            total = self._sum(words if self.rank == root else tf.zeros_like(words), name)
            bits = tf.reshape(tf.bitcast(total, tf.uint8), [-1])[:size]
            return _from_bytes(bits, tensor.dtype, tf.shape(tensor))

        return self._eager(name, send)

    def subset(self, ranks: Sequence[int]) -> RuntimeCollectives | None:
        """See `Collectives.subset`. The subset is a group of the runtime."""
        ranks = list(ranks)
        if ranks == list(range(self.size)):
            return self
        if self.rank not in ranks:
            return None
        group = ALL_RANKS + 1 + int.from_bytes(hashlib.sha256(repr(ranks).encode()).digest()[:3], "big")
        return type(self)(self._device, ranks.index(self.rank), len(ranks), group, self._keys)

    # --- inner workings ---

    def _sums(self, tensors: list[tf.Tensor], label: str) -> list[tf.Tensor]:
        """Returns the sums over ranks of tensors of one type. They are sent together."""
        if len(tensors) == 1:
            return [self._sum(tensors[0], label)]
        counts = [tensor.shape.num_elements() for tensor in tensors]
        sizes = counts if None not in counts else tf.stack([tf.size(tensor) for tensor in tensors])
        total = self._sum(tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0), label)
        parts = tf.split(total, sizes, num=len(tensors))
        results = [tf.reshape(part, tf.shape(tensor)) for part, tensor in zip(parts, tensors, strict=True)]
        for result, tensor in zip(results, tensors, strict=True):
            result.set_shape(tensor.shape)
        return results

    def _sum(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Returns the sum over ranks of a tensor that has the same shape on all ranks."""
        dtype = tensor.dtype
        if dtype == tf.uint64:
            return tf.bitcast(self._sum(tf.bitcast(tensor, tf.int64), label), tf.uint64)
        if dtype.name not in _ADDED:
            if dtype.name not in _ADDED_AS:
                raise TypeError(
                    f"allreduce '{label}' cannot add up tensors of type {dtype.name}. Cast them to a floating or "
                    "integer type"
                )
            return tf.cast(self._sum(tf.cast(tensor, _ADDED_AS[dtype.name]), label), dtype)
        label = f"{label}.{dtype.name}"
        flat, n = tf.reshape(tensor, [-1]), tensor.shape.num_elements()
        if n == 0:
            return tensor
        if n is not None:
            total = self._op(_reduce, flat, f"{label}[{n}]", None)
        else:
            size = tf.size(flat, tf.int64)
            padded, size_number = _size_of(4 * size)
            total = self._op(_reduce, tf.pad(flat, [[0, padded - size]]), label, size_number)[:size]
        total = tf.reshape(total, tf.shape(tensor))
        total.set_shape(tensor.shape)
        return total

    def _gathered(self, numbers: tf.Tensor, label: str) -> tf.Tensor:
        """Returns integers of a fixed shape of all ranks, stacked in rank order."""
        stacked = self._gather(numbers[None], f"{label}.{numbers.dtype.name}{numbers.shape.as_list()}", None)
        return stacked if self._in_order else tf.gather(stacked, self._positions)

    def _exchange(self, flat: tf.Tensor, sizes: tf.Tensor, label: str) -> list[tf.Tensor]:
        """Returns the bytes of all ranks in rank order, each followed by padding.

        Args:
          flat: This rank's bytes, uint8[n].
          sizes: The number of bytes of each rank, int64[size].
          label: See `_op`.
        """
        words, size_number = _size_of(tf.reduce_max(sizes))
        padded = tf.pad(flat, [[0, 4 * words - tf.size(flat, tf.int64)]])
        gathered = self._gather(_to_words(padded, [1, -1]), label, size_number)
        rows = tf.reshape(tf.bitcast(gathered, tf.uint8), [self.size, -1])
        return [rows[position] for position in self._positions]

    def _gather(self, rows: tf.Tensor, label: str, size_number: tf.Tensor | int | None) -> tf.Tensor:
        return self._op(tf.raw_ops.CollectiveGatherV2, rows, label, size_number)

    @property
    def _in_order(self) -> bool:
        return self._members == list(range(self.size))

    def _op(
        self, op: Callable[..., tf.Tensor], value: tf.Tensor, label: str, size_number: tf.Tensor | int | None
    ) -> Any:
        """Runs one operation of the runtime.

        Args:
          op: The op, which takes the arguments that all these ops have.
          value: The tensor to send.
          label: The name that distinguishes the operation from all others. It never changes.
          size_number: The number of the size (`_size_of`), int32, if sizes change; None if the label contains the
            shape.
        """
        digest = int.from_bytes(hashlib.sha256(f"{self._group}/{label}".encode()).digest()[:8], "big")
        key = _FIXED + digest % _FIXED if size_number is None else _SIZED + ((digest % (1 << 21)) << _SIZE_BITS)
        with self._lock:
            registered = self._keys.setdefault(key, f"{self._group}/{label}")
            if registered != f"{self._group}/{label}":
                raise RuntimeError(
                    f"the names of two operations, {registered!r} and {label!r}, have the same instance key. Rename "
                    "one of the two layers or optimizers"
                )
            if label not in self._tokens:
                self._tokens[label] = _keras.local_variable(0, "int64", f"order.{label}")
            token = self._tokens[label]
        with tf.device(self._device):
            in_graph = not tf.executing_eagerly()
            if in_graph:
                name, variable = label.partition("[")[0], token.read_value()
                value = _ops.mark(value, name, "begin", variable)
            result = op(
                input=value,
                group_size=self.size,
                group_key=self._group,
                instance_key=key if size_number is None else key + size_number,
                ordering_token=[token.handle],
                timeout_seconds=0.0,  # see operation_timeout.py
            )
            one = tf.constant(1, tf.int64)
            if in_graph:
                # The token takes the mark's output: Grappler removes the marks of results that nothing uses.
                with tf.control_dependencies([result]):
                    one = _ops.mark(one, name, "end", variable)
            token.assign_add(one)  # in a graph, this runs after the operation, because both use the token
            return result

    def _eager(self, name: str, build: Callable[[], Any]) -> Any:
        """Builds operations on this worker's CPU. Errors of eager operations become a `CollectivesError`."""
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
    """Returns the size to which `n_bytes` are padded.

    Returns:
      The size in words of 4 bytes, int64, and its number in `_SIZES`, int32.
    """
    sizes = tf.constant(_SIZES, tf.int64)
    size_number = tf.searchsorted(sizes, tf.reshape((n_bytes + 3) // 4, [1]))[0]
    return sizes[size_number], size_number


def _rows_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the shape of a tensor with -1 for the number of rows."""
    return tf.concat([[-1], tf.shape(tensor)[1:]], 0)


def _to_bytes(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the bytes of a tensor, uint8[n]."""
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tensor, tf.uint8)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex):
        raise TypeError(
            f"the operation '{name}' cannot send tensors of type {tensor.dtype.name}. Convert them to a number type"
        )
    return tf.reshape(tensor if tensor.dtype == tf.uint8 else tf.bitcast(tensor, tf.uint8), [-1])


def _from_bytes(data: tf.Tensor, dtype: tf.DType, shape: tf.Tensor) -> tf.Tensor:
    """Returns a tensor from the bytes of `_to_bytes`. `shape` may contain a -1."""
    if dtype == tf.bool:
        return tf.reshape(tf.cast(data, tf.bool), shape)
    if dtype != tf.uint8:
        data = tf.bitcast(tf.reshape(data, [-1, dtype.size]) if dtype.size > 1 else data, dtype)
    return tf.reshape(data, shape)


def _to_words(data: tf.Tensor, shape: Any) -> tf.Tensor:
    """Returns bytes as int32, the smallest type that the runtime sends."""
    return tf.reshape(tf.bitcast(tf.reshape(data, [-1, 4]), tf.int32), shape)
