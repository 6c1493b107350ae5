"""Where `fit` begins: the epoch and the batch, which Keras lets only its own BackupAndRestore choose.

Keras 3 has the model's `_initial_epoch`; Keras 2 asks the model's `_training_state`. How many batches an epoch has, a
loop's iterator notes when it has seen one: one that begins in the middle of an epoch would have all later ones be as
short. So it is told, at the beginning of each epoch. Checked with Keras 3.15 on TensorFlow 2.21 and Keras 2.15 on
TensorFlow 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tf_sparse_ps._compat import _keras


class _Begin:
    """What Keras 2's `fit` asks for the epoch that it begins with."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._epoch, 0


def begin_at_epoch(model: Any, epoch: int) -> None:
    """Has the `fit` whose `on_train_begin` calls this begin with an epoch."""
    if _keras.IS_KERAS_3:
        model._initial_epoch = epoch
    else:
        model._training_state = _Begin(epoch)


def end(model: Any) -> None:
    """The next `fit` begins with the epoch that it is told."""
    if _keras.IS_KERAS_3:
        model._initial_epoch = None
    else:
        model._training_state = None


def input_of(model: Any) -> Any:
    """What the `fit` that is on the stack was given as `x`; None: none is."""
    return next((names.get("x") for names in _names_in_fit(model)), None)


def arguments_of(model: Any, *names: str) -> dict[str, Any] | None:
    """Arguments, by name, of the `fit` that is on the stack; None: none is."""
    found = next(_names_in_fit(model), None)
    return None if found is None else {name: found.get(name) for name in names}


class _Scopes(threading.local):
    """Of the `fit`s of a thread, the innermost last: what is to be done when they end."""

    def __init__(self) -> None:
        self.stack: list[contextlib.ExitStack] = []


_scopes = _Scopes()


def at_end(action: Callable[[], object]) -> None:
    """Has the innermost `fit` of this thread call `action` when it ends, with an exception, too.

    Keras calls no callback then. Outside of `fit`, where a loop calls the callbacks, this does nothing. What was given
    last is called first.
    """
    if _scopes.stack:
        _scopes.stack[-1].callback(action)


def scope_fits() -> None:
    """Has Keras's `fit` do what `at_end` was given."""
    owner = next(one for one in _keras.keras.Model.__mro__ if "fit" in one.__dict__)
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
    """The next `fit` goes through its own validation data: after an exception Keras keeps those of the `fit` before."""
    for name in ("_eval_epoch_iterator", "_eval_data_handler"):
        if getattr(model, name, None) is not None:
            delattr(model, name)


def begin_epoch(model: Any, batch: int, batches: int | None) -> None:
    """Tells the `fit` whose `on_epoch_begin` calls this what its dataset yields in the epoch.

    Args:
      model: That is trained.
      batch: The number of its first batch in the epoch.
      batches: Of the epoch; None: it is not known.

    Raises:
      RuntimeError: This Keras is not known here.
    """
    loop = _loop(model)
    if _keras.IS_KERAS_3:
        loop._num_batches = None if batches is None else batches - batch
    else:
        loop._initial_step, loop._inferred_steps = batch, batches


def _names_in_fit(model: Any) -> Iterator[Mapping[str, Any]]:
    """The local names of each of the model's `fit`s that are on the stack, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            yield frame.f_locals
        frame = frame.f_back


def _loop(model: Any) -> Any:
    """The iterator over batches of the `fit` that is on the stack."""
    name, attribute = ("epoch_iterator", "_num_batches") if _keras.IS_KERAS_3 else ("data_handler", "_inferred_steps")
    for names in _names_in_fit(model):
        found = names.get(name)
        if hasattr(found, attribute):
            return found
    raise RuntimeError(
        f"fit cannot be begun in the middle of an epoch: this Keras's has no {name} with {attribute}. Keras 3.15 and "
        f"2.15 have. Received: Keras {getattr(_keras.keras, '__version__', '2')}"
    )
