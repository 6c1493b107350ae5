"""Collectives over Horovod (tested with Horovod 0.28.1 with Gloo, TensorFlow 2.15 and 2.21).

An operation keeps its name, runs once per call, and waits only for what it depends on:

- In a graph, the op is built in place, with its fixed name, and Horovod ignores the name scopes around it. An eager
  call builds the op in a `tf.function`, because eager Horovod ops ignore their names.
- In a graph, the op is not in a separate function that is not inlined. TensorFlow runs such a function synchronously
  and holds an inter-op thread until all ranks have reached the op. With three operations in flight and two threads, the
  ranks can start different ones: in a test they waited for each other forever.
- Horovod's ops look pure to TensorFlow. It would fold an op on a constant, merge two ops on equal inputs, and drop an
  op whose output this rank does not need. So each name has a counter variable. The counter is read before the
  operation, and advanced after it by a number that is computed from its output.
- The inputs also depend on the counter's value (`_ops.mark`). With constant inputs, TensorFlow would run the operation
  once, before the function. It would wait there for ranks whose inputs are not constant, which run it inside.
- Automatic control dependencies order ops by variable. Thanks to the counter, a name is never in flight twice, not even
  in unrolled steps, and operations with different names do not wait for each other.

When any rank exits, Horovod shuts down on all ranks. So a process that ends without an error first meets the others at
a barrier, for a limited time. A process that ends with an error does not, and the others fail immediately.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _horovod, _keras
from tf_sparse_ps.collectives import eager_operations, exit_report
from tf_sparse_ps.collectives.horovod_setup import PROCESS_SETS
from tf_sparse_ps.collectives.key_values import EXIT_REPORT, KeyValueStore
from tf_sparse_ps.collectives.processes import ProcessCollectives, by_type
from tf_sparse_ps.errors import CollectivesError

# Horovod raises tf.errors of these types from a graph, and its own type from an eager call.
_FAILURES = (tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.InternalError, tf.errors.CancelledError)


class HorovodCollectives(ProcessCollectives):
    """The collectives of all ranks of a Horovod job, or of a subset. Horovod must be initialised."""

    kind = "horovod"

    def __init__(self, process_set: Any = None) -> None:
        """Reads the ranks from Horovod and registers the barrier at exit.

        Args:
          process_set: The process set of some ranks, including this one, for `subset`; None: all ranks.
        """
        super().__init__()
        self._process_set = process_set or hvd.global_process_set
        self.rank, self.size = int(self._process_set.rank()), int(self._process_set.size())
        self.local_rank, self.local_size = int(hvd.local_rank()), int(hvd.local_size())
        self.cross_rank, self.cross_size = int(hvd.cross_rank()), int(hvd.cross_size())
        self.key_values = KeyValueStore.of_launcher()
        self._lock = threading.RLock()
        self._functions: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._counters: dict[str, tf.Variable] = {}
        self._allocated = process_set is not None or self.size == 1  # a process has one buffer
        if process_set is None:
            # Horovod has registered its own handler before. So this one runs first.
            atexit.register(self.end)
            if self.size > 1:
                # After hvd.join(), Horovod itself refuses some collectives, but not all.
                _horovod.refuse_join(self._refuse_join)

    # --- graph operations ---

    def _allreduce(self, tensors: list[tf.Tensor], name: str, average: bool) -> list[tf.Tensor]:
        def reduce(*group: tf.Tensor, label: str) -> list[tf.Tensor]:
            sums = _horovod.grouped_sum(list(group), label, self._process_set)
            return [total / tf.cast(self.size, total.dtype) for total in sums] if average else sums

        return self._groups("mean" if average else "sum", name, tensors, reduce)

    def _allgather(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        def gather(*group: tf.Tensor, label: str) -> list[tf.Tensor]:
            gathered = mpi_ops.grouped_allgather(
                list(group), name=label, ignore_name_scope=True, process_set=self._process_set
            )
            return list(gathered)

        return self._groups("gather", name, tensors, gather)

    def _alltoall(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> list[tf.Tensor]:
        exchange = functools.partial(mpi_ops.alltoall, name=name, ignore_name_scope=True, process_set=self._process_set)
        return self._call("alltoall", name, [tensor, splits], exchange)

    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        def send(value: tf.Tensor) -> list[tf.Tensor]:
            ranks = self._process_set.ranks  # None: all ranks
            source = root if ranks is None else ranks[root]
            return [mpi_ops.broadcast(value, source, name=name, ignore_name_scope=True, process_set=self._process_set)]

        return self._call(f"broadcast{root}", name, [tensor], send)[0]

    def subset(self, ranks: Sequence[int]) -> HorovodCollectives | None:
        """See `Collectives.subset`. The subset is a Horovod process set."""
        ranks = list(ranks)
        if ranks == list(range(self.size)):
            return self
        try:
            process_set = hvd.add_process_set(ranks)
        except (ValueError, RuntimeError) as error:
            raise RuntimeError(
                f"Horovod cannot make a process set of the ranks {ranks}: {error}. topology='hierarchical' needs the "
                "set on several nodes. Import tf_sparse_ps before hvd.init(), or call tsps.init() in its place, or set "
                f"{PROCESS_SETS}=1. Otherwise use topology='flat'."
            ) from error
        return HorovodCollectives(process_set) if self.rank in ranks else None

    # --- inner workings ---

    def _groups(
        self, verb: str, name: str, tensors: list[tf.Tensor], operation: Callable[..., list[tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Runs one grouped operation per type of tensor, because the tensors of a Horovod group have the same type."""

        def run(group: list[tf.Tensor]) -> list[tf.Tensor]:
            label = f"{name}.{group[0].dtype.name}"
            return self._call(verb, label, group, functools.partial(operation, label=label))

        return by_type(tensors, run)

    def _call(
        self, verb: str, label: str, tensors: Sequence[tf.Tensor], body: Callable[..., list[tf.Tensor]]
    ) -> list[tf.Tensor]:
        self._allocate_fusion_buffer()
        counter = self._counter(label)
        if not tf.executing_eagerly():
            with tf.device("/CPU:0"):
                # Each input becomes a separate tensor, which does not look equal to an input of another operation.
                count = counter.read_value()
                with tf.control_dependencies([count]):
                    inputs = [tf.raw_ops.PlaceholderWithDefault(input=value, shape=value.shape) for value in tensors]
                with tf.control_dependencies(inputs[1:]):
                    inputs[0] = _ops.mark(inputs[0], label, "begin", count)
                outputs = list(body(*inputs))
                outputs[0] = _ops.mark(outputs[0], label, "end", count)
            counter.assign_add(_one_that_depends_on(outputs[0]))
            return outputs
        try:
            with eager_operations.running(label):
                outputs = list(self._function(verb, label, tensors, body)(*tensors))
        except (*_FAILURES, _horovod.HorovodInternalError) as error:
            self.failed = True
            raise CollectivesError(f"collective '{label}' failed on rank {self.rank}: {error}") from error
        counter.assign_add(1)
        return outputs

    def _allocate_fusion_buffer(self) -> None:
        """Makes Horovod allocate its fusion buffer from fresh memory. It has an effect before the first collective.

        Horovod allocates the buffer when it first needs it, and keeps it. The memory comes from TensorFlow's allocator,
        which never returns memory to the system. If the allocation happened during training, the buffer would get the
        memory that a step's largest tensors have just left. The buffer uses few of these pages, but all of them are
        resident, and the tensors get other pages. This costs 20 MiB per rank in `benchmarks ranks`.
        """
        with self._lock:
            first, self._allocated = not self._allocated, True
        if first:
            with tf.init_scope():
                self.allreduce([tf.zeros([]), tf.zeros([])], "fusion", average=False)

    def _counter(self, label: str) -> tf.Variable:
        with self._lock:
            if label not in self._counters:
                # Not a tf.Variable: a function that is traced again, with new operations, may not make one.
                self._counters[label] = _keras.local_variable(0, "int64", f"enqueued.{label}")
            return self._counters[label]

    def _function(
        self, verb: str, label: str, tensors: Sequence[tf.Tensor], body: Callable[..., list[tf.Tensor]]
    ) -> Callable[..., Any]:
        # The number of rows varies, so that one trace serves all of them.
        ragged = verb in ("gather", "alltoall")
        specs = tuple(
            tf.TensorSpec([None, *t.shape[1:]] if ragged and t.shape.rank else t.shape, t.dtype) for t in tensors
        )
        with self._lock:
            if (verb, label, specs) not in self._functions:

                def traced(*values: tf.Tensor) -> list[tf.Tensor]:
                    with tf.device("/CPU:0"):
                        return body(*values)

                # A partial, because TensorFlow counts traces by code object and would warn of retracing.
                wrapped = tf.function(functools.partial(traced), input_signature=specs, autograph=False)
                self._functions[verb, label, specs] = wrapped
            return self._functions[verb, label, specs]

    def _refuse_join(self, *_: Any, **__: Any) -> None:
        self.failed = True
        text = exit_report.joined(self.rank)
        self.key_values.write(EXIT_REPORT, text)
        raise RuntimeError(text)

    def _connected(self) -> bool:
        return bool(hvd.is_initialized())


def _one_that_depends_on(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the number 1 as int64, computed from the tensor in a way that Grappler cannot simplify."""
    first = tf.cast(tf.cast(tf.reshape(tensor, [-1])[:1], tf.bool), tf.int64)
    return tf.maximum(tf.reduce_max(first), 1)
