"""Replaces functions of Keras and TensorFlow by functions that also take care of tables, and call the original.

This is needed because Keras opens the file that it saves to before it calls a layer, and calls nothing of ours when
`fit` begins. Each replacement first looks at the object, and adds nothing for models without tables. A function that a
version lacks is left out. Checked with Keras 3.15 on TensorFlow 2.21, tf_keras 2.21 on TensorFlow 2.21, and Keras 2.15
on TensorFlow 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras, _keras_inputs

# The functions that save. The first two arguments of each are the object, and the path or prefix to save to.
_SAVERS = (
    ("{keras}.src.saving.saving_lib", "save_model"),  # .keras
    ("{keras}.src.saving.saving_lib", "save_weights_only"),  # .weights.h5
    ("{keras}.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5"),  # Keras 3: .h5
    ("{keras}.src.saving.legacy.save", "save_model"),  # Keras 2: .h5 and SavedModel
    ("{keras}.src.saving.legacy.save", "save_weights"),  # Keras 2: .h5 and checkpoint
    ("tensorflow.python.saved_model.save", "save_and_return_nodes"),  # tf.saved_model.save, and other exports
    ("tensorflow.python.checkpoint.checkpoint", "TrackableSaver.save"),  # tf.train.Checkpoint, and its users
)


# The functions that trace parts of a SavedModel, before they call tf.saved_model.save.
_TRACERS = (
    ("{keras}.src.export.saved_model_export_archive", "SavedModelExportArchive.add_endpoint"),  # Keras 3
    ("{keras}.src.export.saved_model_export_archive", "SavedModelExportArchive.write_out"),
    ("{keras}.src.export.export_lib", "ExportArchive.add_endpoint"),  # Keras 2
    ("{keras}.src.export.export_lib", "ExportArchive.write_out"),
)
_DEFAULT_SIGNATURE = ("{keras}.src.backend.tensorflow.layer", "TFLayer._default_save_signature")
_EXPORT_SIGNATURE = ("{keras}.src.export.export_utils", "_infer_input_signature_from_model")
_COMPILE_AGAIN = ("{keras}.src.trainers.trainer", "Trainer.compile_from_config")
_PROJECTOR = ("{keras}.src.callbacks", "TensorBoard._configure_embeddings")
_LITE = ("tensorflow.lite.python.lite", "TFLiteConverterV2.from_keras_model")
_MEMORY_CHECK = ("{keras}.src.saving.saving_lib", "is_memory_sufficient")


def around_savers(guard: Callable[[Any, Any, Callable[[], Any]], Any]) -> None:
    """Has all functions that save objects to paths return `guard(object, path, save)`, where `save()` saves."""

    def guarded(save: Any) -> Any:
        signature = inspect.signature(save)

        @functools.wraps(save)
        def saver(*args: Any, **kwargs: Any) -> Any:
            saved, path = list(signature.bind(*args, **kwargs).arguments.values())[:2]
            return guard(saved, path, lambda: save(*args, **kwargs))

        return saver

    for owner, name in _found(*_SAVERS):
        setattr(owner, name, guarded(getattr(owner, name)))


def around_exports(scope: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Has Keras's `ExportArchive` trace functions inside of `scope()`."""

    def scoped(trace: Any) -> Any:
        @functools.wraps(trace)
        def tracer(*args: Any, **kwargs: Any) -> Any:
            with scope():
                return trace(*args, **kwargs)

        return tracer

    for owner, name in _found(*_TRACERS):
        setattr(owner, name, scoped(getattr(owner, name)))


def save_by_parts(large: Callable[[Any], bool]) -> None:
    """Makes Keras 3 write and read the `.keras` files of models that are `large` on the disk, not in memory."""

    def checked(is_sufficient: Any) -> Any:
        @functools.wraps(is_sufficient)
        def check(model: Any) -> Any:
            return not large(model) and is_sufficient(model)

        return check

    for owner, name in _found(_MEMORY_CHECK):
        setattr(owner, name, checked(getattr(owner, name)))


def _found(*functions: tuple[str, str]) -> Iterator[tuple[Any, str]]:
    """Yields the owner, a module or class, and the name of each of the functions and methods that exist."""
    package = _keras.Layer.__module__.split(".")[0]
    for module, name in functions:
        with contextlib.suppress(ImportError, AttributeError):
            owner: Any = importlib.import_module(module.format(keras=package))
            *outer, last = name.split(".")
            for outer_name in outer:
                owner = getattr(owner, outer_name)
            getattr(owner, last)
            yield owner, last


# The methods of a list of callbacks that `fit`, `evaluate` and `predict` call with each batch, and with each epoch.
_BATCHES = ("on_train_batch_begin", "on_test_batch_begin", "on_predict_batch_begin", "on_epoch_begin")


def at_batches(action: Callable[[], None]) -> None:
    """Has `fit`, `evaluate` and `predict` call `action` with each batch."""
    callback_list = _keras.keras.callbacks.CallbackList
    for name in _BATCHES:
        begin = getattr(callback_list, name)

        def counted(self: Any, *args: Any, begin: Any = begin, **kwargs: Any) -> Any:
            action()
            return begin(self, *args, **kwargs)

        setattr(callback_list, name, functools.wraps(begin)(counted))


# The methods between which `fit` trains the batches of an epoch, or starts to validate.
_EPOCHS = ("on_epoch_begin", "on_train_batch_begin", "on_epoch_end", "on_test_begin")


def in_epochs(observe: Callable[[Any, str], None]) -> None:
    """Has `fit` and `evaluate` call `observe(model, name)` before methods of callbacks: those of `_EPOCHS`."""
    callback_list = _keras.keras.callbacks.CallbackList
    for name in _EPOCHS:
        method = getattr(callback_list, name)

        def observed(self: Any, *args: Any, name: str = name, method: Any = method, **kwargs: Any) -> Any:
            if self.model is not None:
                observe(self.model, name)
            return method(self, *args, **kwargs)

        setattr(callback_list, name, functools.wraps(method)(observed))


def in_progress_line(figures: Callable[[Any], dict[str, float]]) -> None:
    """Has the progress line of `fit` also show `figures(model)`, which no other callback sees."""
    logger = _keras.keras.callbacks.ProgbarLogger
    for name in ("on_train_batch_end", "on_epoch_end"):
        method = getattr(logger, name)

        def extended(self: Any, number: int, logs: Any = None, method: Any = method) -> Any:
            return method(self, number, {**(logs or {}), **figures(self.model)})

        setattr(logger, name, functools.wraps(method)(extended))


def export_real_types() -> None:
    """Makes Keras 3 export subclassed models with the types of the tensors that they were first called with.

    Layers of ids record these types (`_keras_inputs.inputs_of`). Otherwise Keras 3 assumes the model's compute dtype,
    float32, for all inputs, and layers of ids refuse it. Keras 2 keeps the types itself.
    """

    def signature(model: Any) -> list[Any] | None:
        # Functional and Sequential models have symbolic inputs, which have types.
        return None if getattr(model, "inputs", None) else _keras_inputs.inputs_of(model)

    for owner, name in _found(_DEFAULT_SIGNATURE):
        setattr(owner, name, property(_with_types(getattr(owner, name).fget, signature)))
    for owner, name in _found(_EXPORT_SIGNATURE):
        original = getattr(owner, name)

        @functools.wraps(original)
        def inferred(model: Any, original: Any = original) -> Any:
            arguments = signature(model)
            if arguments is None:
                return original(model)
            return [tf.nest.map_structure(_input_spec, argument) for argument in arguments]

        setattr(owner, name, inferred)


def _with_types(original: Any, signature: Callable[[Any], list[Any] | None]) -> Any:
    @functools.wraps(original)
    def default(model: Any) -> Any:
        arguments = signature(model)
        if arguments is None:
            return original(model)

        def serving_default(inputs: Any) -> Any:  # Keras uses this name
            return model(inputs)

        def several(*inputs: Any) -> Any:
            return model(*inputs)

        return tf.function(serving_default if len(arguments) == 1 else several, input_signature=arguments)

    return default


def _input_spec(spec: tf.TypeSpec) -> Any:
    if not isinstance(spec, tf.TensorSpec):
        return spec
    return _keras.keras.layers.InputSpec(shape=tuple(spec.shape), dtype=spec.dtype.name)


def compile_unbuilt(has_tables: Callable[[Any], bool]) -> None:
    """Keeps Keras 3 from building a plain optimizer when it loads or clones a compiled model with tables.

    A plain optimizer refuses tables when it is built, but loading a model does not mean training it. The optimizer
    still refuses the tables when `fit` begins.
    """
    for owner, name in _found(_COMPILE_AGAIN):
        original = getattr(owner, name)

        @functools.wraps(original)
        def compiled(self: Any, config: Any, original: Any = original) -> Any:
            is_distributed = f"{_keras.PACKAGE}>DistributedOptimizer" in str(config.get("optimizer"))
            if is_distributed or not self.built or not has_tables(self):
                return original(self, config)
            self.built = False
            try:
                return original(self, config)
            finally:
                self.built = True

        setattr(owner, name, compiled)


def before_projector(check: Callable[[Any, Any], None]) -> None:
    """Has `TensorBoard` call `check(model, callback)` before it configures the projector."""
    for owner, name in _found(_PROJECTOR):
        original = getattr(owner, name)

        @functools.wraps(original)
        def configure(self: Any, original: Any = original) -> Any:
            check(self.model, self)
            return original(self)

        setattr(owner, name, configure)


def before_lite(check: Callable[[Any], None]) -> None:
    """Has TensorFlow Lite's converter of Keras models call `check(model)` first."""
    for owner, name in _found(_LITE):
        original = getattr(owner, name)

        @functools.wraps(original)
        def converter(_: Any, model: Any, original: Any = original) -> Any:
            check(model)
            return original(model)

        setattr(owner, name, classmethod(converter))


def before_fit(check: Callable[[Any, list[Any]], None]) -> None:
    """Has `fit` call `check(model, callbacks)` first, before any callback or batch."""
    callback_list = _keras.keras.callbacks.CallbackList
    begin = callback_list.on_train_begin

    @functools.wraps(begin)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.model is not None:
            check(self.model, list(self.callbacks))
        return begin(self, *args, **kwargs)

    callback_list.on_train_begin = checked
