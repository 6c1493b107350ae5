"""`ProcessCollectives`: what the collectives of processes have in common, whichever library connects them."""

from __future__ import annotations

import abc
import contextlib
import io
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps.collectives import exit_report
from tf_sparse_ps.collectives.interface import Collectives
from tf_sparse_ps.collectives.key_values import EXIT_REPORT

_EXIT_BARRIER_SECONDS = 30.0


class ProcessCollectives(Collectives):
    """The collectives of ranks that are processes. Objects are sent as gathered bytes.

    A subclass sends tensors by `_allreduce`, `_allgather`, `_alltoall` and `_broadcast`. They get checked tensors, are
    called only if there are several ranks, and need not set static shapes.

    Attributes:
      failed: Whether a collective of this process has failed, or the process ends with an error. In both cases the
        ranks will not meet in another operation.
    """

    def __init__(self) -> None:
        """Starts without failures and without actions for the end of the process."""
        self.failed = False
        self._at_exit: list[Callable[[], None]] = []

    # --- graph operations ---

    def allreduce(self, tensors: Sequence[tf.Tensor], name: str, *, average: bool = True) -> list[tf.Tensor]:
        """See `Collectives.allreduce`."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if average and any(not tensor.dtype.is_floating for tensor in tensors):
            raise TypeError(
                f"allreduce '{name}' averages floating tensors only. Cast the tensors, or pass average=False. "
                f"Received: {[tensor.dtype.name for tensor in tensors]}"
            )
        return tensors if self.size == 1 or not tensors else self._allreduce(tensors, name, average)

    def allgather(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """See `Collectives.allgather`."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.size == 1 or not tensors:
            return tensors
        gathered = self._allgather(tensors, name)
        for output, tensor in zip(gathered, tensors, strict=True):
            output.set_shape([None, *tensor.shape[1:]])
        return gathered

    def alltoall(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Collectives.alltoall`."""
        tensor, splits = tf.convert_to_tensor(tensor), tf.convert_to_tensor(splits, tf.int32)
        if self.size == 1:
            return tensor, splits
        received, counts = self._alltoall(tensor, splits, name)
        received.set_shape([None, *tensor.shape[1:]])
        return received, counts

    def broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        """See `Collectives.broadcast`."""
        tensor = tf.convert_to_tensor(tensor)
        if not 0 <= root < self.size:
            raise ValueError(f"broadcast '{name}': root must be a rank, 0 to {self.size - 1}. Received: {root}")
        if self.size == 1:
            return tensor
        received = self._broadcast(tensor, root, name)
        received.set_shape(tensor.shape)
        return received

    @abc.abstractmethod
    def _allreduce(self, tensors: list[tf.Tensor], name: str, average: bool) -> list[tf.Tensor]: ...

    @abc.abstractmethod
    def _allgather(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]: ...

    @abc.abstractmethod
    def _alltoall(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> list[tf.Tensor]: ...

    @abc.abstractmethod
    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor: ...

    # --- object operations ---

    def barrier(self, name: str) -> None:
        """See `Collectives.barrier`. The barrier is a reduction of one number."""
        _must_be_eager(name)
        self.allreduce([tf.zeros([], tf.int32)], name, average=False)

    def broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        """See `Collectives.broadcast_object`."""
        _must_be_eager(name)
        if self.size == 1:
            return obj
        packed = np.frombuffer(pickle.dumps(obj), np.uint8) if self.rank == root else np.zeros([0], np.uint8)
        # A gather to which only the root contributes. Unlike a broadcast, it needs no size in advance.
        (data,) = self.allgather([tf.constant(packed)], name)
        return pickle.loads(data.numpy().tobytes())

    def allgather_object(self, obj: Any, name: str) -> list[Any]:
        """See `Collectives.allgather_object`."""
        _must_be_eager(name)
        if self.size == 1:
            return [obj]
        (data,) = self.allgather([tf.constant(np.frombuffer(pickle.dumps(obj), np.uint8))], name)
        stream = io.BytesIO(data.numpy().tobytes())
        return [pickle.load(stream) for _ in range(self.size)]

    # --- the end of the process ---

    def at_exit(self, action: Callable[[], None]) -> None:
        """See `Collectives.at_exit`."""
        self._at_exit.append(action)

    def end(self) -> None:
        """Meets the other ranks at the end of the process, then runs the actions of `at_exit`."""
        try:
            self._meet_at_exit()
        finally:
            with contextlib.ExitStack() as actions:
                for action in self._at_exit:
                    actions.callback(action)

    def _connected(self) -> bool:
        """Whether this rank can still reach the other ranks."""
        return True

    def _missed_others(self, waited_s: float) -> None:
        """Reports to the other ranks why this one ends. It is called if they have not reached their end in time."""
        self.key_values.write_first(EXIT_REPORT, exit_report.no_more_steps(self.rank, waited_s))

    def _meet_at_exit(self) -> None:
        """Waits for the other ranks, unless this process ends with an error or cannot reach them."""
        crashed = getattr(sys, "last_value", None) is not None or self.failed
        if self.size == 1 or crashed or not self._connected():
            return

        def meet() -> None:
            # An error means that another rank ended first. That rank reports why.
            with contextlib.suppress(Exception):
                self.barrier("tsps.exit")

        waiter = threading.Thread(target=meet, name="tsps-exit-barrier", daemon=True)
        try:
            waiter.start()
        except RuntimeError:  # Python 3.12 starts no threads at the exit of the interpreter
            meet()
            return
        waiter.join(_EXIT_BARRIER_SECONDS)
        if waiter.is_alive():
            self._missed_others(_EXIT_BARRIER_SECONDS)


def by_type(tensors: Sequence[tf.Tensor], operation: Callable[[list[tf.Tensor]], list[tf.Tensor]]) -> list[tf.Tensor]:
    """Applies an operation to the tensors of each type. Returns the results in the order of `tensors`."""
    results: dict[int, tf.Tensor] = {}
    for dtype in sorted({tensor.dtype.name for tensor in tensors}):
        indices = [i for i, tensor in enumerate(tensors) if tensor.dtype.name == dtype]
        results |= dict(zip(indices, operation([tensors[i] for i in indices]), strict=True))
    return [results[i] for i in range(len(tensors))]


def _must_be_eager(name: str) -> None:
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"the operation '{name}' must be called eagerly, but a tf.function is being traced. Move the call out of "
            "the function"
        )
