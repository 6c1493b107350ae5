"""Sets the epoch and the batch at which `fit` begins, which Keras allows only its own BackupAndRestore to choose.

Keras 3 reads the first epoch from the model's `_initial_epoch`; Keras 2 asks the model's `_training_state`. The loop's
iterator counts the batches of the first epoch, and expects the same number in every later one. If `fit` begins in the
middle of an epoch, this number is too small, so `begin_epoch` sets the right one at the beginning of each epoch.
Checked with Keras 3.15 on TensorFlow 2.21 and Keras 2.15 on TensorFlow 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras


class _TrainingState:
    """The object that Keras 2's `fit` asks for its first epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._epoch, 0


def begin_at_epoch(model: Any, epoch: int) -> None:
    """Makes `fit` begin with an epoch. Its `on_train_begin` calls this function."""
    if _keras.IS_KERAS_3:
        model._initial_epoch = epoch
    else:
        model._training_state = _TrainingState(epoch)


def end(model: Any) -> None:
    """Removes the epoch that `begin_at_epoch` has set, so that the next `fit` begins with its `initial_epoch`."""
    if _keras.IS_KERAS_3:
        model._initial_epoch = None
    else:
        model._training_state = None


def input_of(model: Any) -> Any:
    """Returns the argument `x` of the `fit` that is on the stack, or None if none is."""
    return next((names.get("x") for names in _names_in_fit(model)), None)


def arguments_of(model: Any, *names: str) -> dict[str, Any] | None:
    """Returns arguments, by name, of the `fit` that is on the stack, or None if none is."""
    local_names = next(_names_in_fit(model), None)
    return None if local_names is None else {name: local_names.get(name) for name in names}


class _Scopes(threading.local):
    """The actions to call at the end of each `fit` of a thread, the innermost `fit` last."""

    def __init__(self) -> None:
        self.stack: list[contextlib.ExitStack] = []


_scopes = _Scopes()


def at_end(action: Callable[[], object]) -> None:
    """Has the innermost `fit` of this thread call `action` when it ends, also when it ends with an exception.

    Keras calls no callback after an exception. The last action is called first. Outside of `fit`, for example in a
    training loop that calls callbacks, this function does nothing.
    """
    if _scopes.stack:
        _scopes.stack[-1].callback(action)


def scope_fits() -> None:
    """Replaces Keras's `fit` by a function that calls the actions of `at_end`."""
    owner = next(cls for cls in _keras.keras.Model.__mro__ if "fit" in cls.__dict__)
    fit = owner.__dict__["fit"]

    @functools.wraps(fit)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as scope:
            _scopes.stack.append(scope)
            try:
                return fit(*args, **kwargs)
            finally:
                _scopes.stack.remove(scope)

    owner.fit = scoped


def forget_validation(model: Any) -> None:
    """Makes the next `fit` use its own validation data. After an exception, Keras keeps those of the previous `fit`."""
    for name in ("_eval_epoch_iterator", "_eval_data_handler"):
        if getattr(model, name, None) is not None:
            delattr(model, name)


def begin_epoch(model: Any, batch: int, batches: int | None) -> None:
    """Tells `fit` which batches its dataset yields in this epoch. Its `on_epoch_begin` calls this function.

    Args:
      model: The model that is trained.
      batch: The number of the first batch that the dataset yields in the epoch.
      batches: The number of batches of the whole epoch; None: it is not known.

    Raises:
      RuntimeError: This version of Keras is not supported.
    """
    loop = _loop(model)
    if _keras.IS_KERAS_3:
        loop._num_batches = None if batches is None else batches - batch
    else:
        loop._initial_step, loop._inferred_steps = batch, batches


def samples_of(model: Any) -> int | None:
    """Returns the samples that this process has trained since Keras has reset the model's metrics.

    Keras weighs the mean loss by samples, so its weight is their number. It is a float32, which is exact up to 2**24
    samples, and then rounded like any sum.

    Returns:
      The number. None: no batch has been trained, or the model has no loss of `compile`.
    """
    for metric in model.metrics:
        if metric.name == "loss" and isinstance(metric, _keras.keras.metrics.Mean):
            count = metric.count if isinstance(metric.count, tf.Variable) else metric.count.value
            # Of a strategy: a variable for each replica. Its own sum may be a collective operation.
            parts = getattr(count, "values", (count,))
            return round(sum(float(part.numpy()) for part in parts))
    return None


def _names_in_fit(model: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the local names of each of the model's `fit`s on the stack, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            yield frame.f_locals
        frame = frame.f_back


def _loop(model: Any) -> Any:
    """Returns the iterator over batches of the `fit` that is on the stack."""
    name, attribute = ("epoch_iterator", "_num_batches") if _keras.IS_KERAS_3 else ("data_handler", "_inferred_steps")
    for local_names in _names_in_fit(model):
        iterator = local_names.get(name)
        if hasattr(iterator, attribute):
            return iterator
    raise RuntimeError(
        f"fit cannot begin in the middle of an epoch, because this version of Keras has no {name} with {attribute}. "
        f"Use Keras 3.15 or 2.15. Received: Keras {getattr(_keras.keras, '__version__', '2')}"
    )
