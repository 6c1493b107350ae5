"""Counts the samples that `fit` trains, in the counters that other processes read (`samples_trained`).

Keras counts them itself, from the beginning of an epoch. `fit` has this module read the count often enough for a view
of the job, and before Keras resets it. Custom training loops count no samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from typing import Any

from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras_fit
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.errors import Error

_PAUSE_S = 0.1  # between two reads: on a device, a read waits for the step


@dataclasses.dataclass
class _Progress:
    """The progress of a model in an epoch.

    Attributes:
      counted: Keras's count at the last read.
      due_at: When to read it again.
      is_training: Whether it counts samples of training, and not of an evaluation.
    """

    counted: int = 0
    due_at: float = 0.0
    is_training: bool = False


_progress: weakref.WeakKeyDictionary[Any, _Progress] = weakref.WeakKeyDictionary()


def observe(model: Any, event: str) -> None:
    """Counts what was trained before a method of callbacks.

    Args:
      model: The model that is trained.
      event: The name of the method: on_epoch_begin, on_train_batch_begin, on_epoch_end or on_test_begin.
    """
    progress = _progress.setdefault(model, _Progress())
    if event == "on_train_batch_begin":
        if not progress.is_training:  # Keras's count is 0, or that of an evaluation that a callback has made
            progress.counted, progress.is_training = _keras_fit.samples_of(model) or 0, True
        elif time.monotonic() >= progress.due_at:
            count(model)
    else:
        count(model)
        progress.is_training = False


def end(model: Any) -> None:
    """Counts what was trained before an exception ended `fit`. An error here would hide that exception."""
    with contextlib.suppress(Error):
        count(model)
    if model in _progress:
        _progress[model].is_training = False


def count(model: Any) -> None:
    """Counts the samples that a model has trained up to now, and shows all counters of this rank."""
    progress, made = _progress.get(model), job.made()
    if progress is None or not progress.is_training or made is None:
        return
    progress.due_at = time.monotonic() + _PAUSE_S
    counted = _keras_fit.samples_of(model)
    if counted is None:
        return
    with eager_ops("counting samples") as ops:
        ops.count_samples(made.group_path, max(counted - progress.counted, 0))
    progress.counted = counted
