"""What collectives of several processes have in common: objects, by gathering their bytes, and the end of a process."""

from __future__ import annotations

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
    """Ranks that are processes.

    Attributes:
      failed: A collective of this process has failed, so that the others will not come to another; or the process ends
        with an error, so that it will not.
    """

    def __init__(self) -> None:
        """Nothing has failed, and nothing is to be done at the end."""
        self.failed = False
        self._at_exit: list[Callable[[], None]] = []

    # --- object operations ---

    def barrier(self, name: str) -> None:
        """See `Collectives.barrier`. A reduction of one number."""
        _must_be_eager(name)
        self.allreduce([tf.zeros([], tf.int32)], name, average=False)

    def broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        """See `Collectives.broadcast_object`."""
        _must_be_eager(name)
        if self.size == 1:
            return obj
        packed = np.frombuffer(pickle.dumps(obj), np.uint8) if self.rank == root else np.zeros([0], np.uint8)
        # One gather to which only the root contributes: its size need not be told beforehand.
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
        """At the end of the process: meets the other ranks, then does what was registered with `at_exit`."""
        try:
            self._meet_at_exit()
        finally:
            with contextlib.ExitStack() as actions:
                for action in self._at_exit:
                    actions.callback(action)

    def _connected(self) -> bool:
        """Whether the other ranks can still be met."""
        return True

    def _missed_others(self, waited_s: float) -> None:
        """Called when the others have not come to their end in this time: tells them why this rank is gone."""
        self.key_values.write_first(EXIT_REPORT, exit_report.no_more_steps(self.rank, waited_s))

    def _meet_at_exit(self) -> None:
        """Waits for the other ranks, unless this process ends with an error or they are gone."""
        crashed = getattr(sys, "last_value", None) is not None or self.failed
        if self.size == 1 or crashed or not self._connected():
            return

        def meet() -> None:
            # An error means that another rank ended first: it says why.
            with contextlib.suppress(Exception):
                self.barrier("tsps.exit")

        waiter = threading.Thread(target=meet, name="tsps-exit-barrier", daemon=True)
        try:
            waiter.start()
        except RuntimeError:  # Python 3.12 starts no threads this late
            meet()
            return
        waiter.join(_EXIT_BARRIER_SECONDS)
        if waiter.is_alive():
            self._missed_others(_EXIT_BARRIER_SECONDS)


def floats_only(tensors: Sequence[tf.Tensor], name: str) -> None:
    """Raises TypeError if one of the tensors of an all-reduce that averages is not of a floating type."""
    if any(not tensor.dtype.is_floating for tensor in tensors):
        raise TypeError(
            f"allreduce '{name}' averages floating tensors only. Received: {[t.dtype.name for t in tensors]}"
        )


def _must_be_eager(name: str) -> None:
    if not tf.executing_eagerly():
        raise RuntimeError(f"'{name}' must be called eagerly, not while a tf.function is traced")
