"""Functions of Keras and TensorFlow that do something more once tables are used: the second adapter, beside `_keras`.

Keras opens the file that it saves to before it asks a layer for anything, and asks nobody when `fit` begins. So the
functions that save, and the one that begins with a list of callbacks, are replaced by ones that call the original. What
is added looks at the object first, and does nothing for models without tables. A function that a version does not have
is left out. Checked with Keras 3.15 on TensorFlow 2.21, tf_keras 2.21 on the same, and Keras 2.15 on TensorFlow 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from tf_sparse_ps._compat import _keras

# All take the object, and the path or prefix that it is saved to, before other arguments.
_SAVERS = (
    ("{keras}.src.saving.saving_lib", "save_model"),  # .keras
    ("{keras}.src.saving.saving_lib", "save_weights_only"),  # .weights.h5
    ("{keras}.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5"),  # Keras 3: .h5
    ("{keras}.src.saving.legacy.save", "save_model"),  # Keras 2: .h5 and SavedModel
    ("{keras}.src.saving.legacy.save", "save_weights"),  # Keras 2: .h5 and checkpoint
    ("tensorflow.python.saved_model.save", "save_and_return_nodes"),  # tf.saved_model.save, and whoever exports
    ("tensorflow.python.checkpoint.checkpoint", "TrackableSaver.save"),  # tf.train.Checkpoint, and whoever has one
)


def around_savers(guard: Callable[[Any, Any], contextlib.AbstractContextManager[None]]) -> None:
    """Has everything that saves objects to paths do so inside of `guard(object, path)`."""
    package = _keras.Layer.__module__.split(".")[0]
    for module, name in _SAVERS:
        with contextlib.suppress(ImportError, AttributeError):
            owner: Any = importlib.import_module(module.format(keras=package))
            *outer, last = name.split(".")
            for one in outer:
                owner = getattr(owner, one)
            setattr(owner, last, _guarded(getattr(owner, last), guard))


def _guarded(save: Any, guard: Callable[[Any, Any], contextlib.AbstractContextManager[None]]) -> Any:
    signature = inspect.signature(save)

    @functools.wraps(save)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        saved, path = list(signature.bind(*args, **kwargs).arguments.values())[:2]
        with guard(saved, path):
            return save(*args, **kwargs)

    return guarded


def before_fit(check: Callable[[Any, list[Any]], None]) -> None:
    """Has `fit` begin with `check(model, callbacks)`, before any callback or batch."""
    callback_list = _keras.keras.callbacks.CallbackList
    begin = callback_list.on_train_begin

    @functools.wraps(begin)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.model is not None:
            check(self.model, list(self.callbacks))
        return begin(self, *args, **kwargs)

    callback_list.on_train_begin = checked
