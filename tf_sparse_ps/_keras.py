"""The one adapter for what differs between Keras 3 and Keras 2, and for every private Keras or TensorFlow API.

Checked with Keras 3.15 on TensorFlow 2.21 and Keras 2.15 on TensorFlow 2.15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

keras = tf.keras
# TensorFlow 2.15's `tf.keras` has no version.
IS_KERAS_3 = int(getattr(keras, "__version__", "2").split(".")[0]) >= 3
PACKAGE = "tf_sparse_ps"
T = TypeVar("T")


# --- serialization ---

_saving: Any = keras.utils if IS_KERAS_3 else keras.saving


def register(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: Keras files that hold the class load without `custom_objects`."""
    return _saving.register_keras_serializable(package=PACKAGE, name=name)


def serialize(obj: Any) -> Any:
    """A serializable form of a Keras object."""
    return _saving.serialize_keras_object(obj)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """The inverse of `serialize`."""
    return _saving.deserialize_keras_object(config, custom_objects=custom_objects)


# --- optimizers (training/) ---

Optimizer: Any = keras.optimizers.Optimizer


def optimizer_types() -> tuple[type, ...]:
    """Classes of which every Keras optimizer is an instance."""
    if IS_KERAS_3:
        return (Optimizer,)
    return (Optimizer, keras.optimizers.legacy.Optimizer)


def is_loss_scale_optimizer(optimizer: Any) -> bool:
    """Whether an optimizer is one of Keras's LossScaleOptimizers (Keras 2 has two, one of them private)."""
    return any("LossScaleOptimizer" in cls.__name__ for cls in type(optimizer).__mro__)


def serialize_optimizer(optimizer: Any) -> Any:
    """A serializable form of a Keras optimizer."""
    return keras.optimizers.serialize(optimizer)


def deserialize_optimizer(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """The inverse of `serialize_optimizer`."""
    if IS_KERAS_3:
        return keras.optimizers.deserialize(config, custom_objects=custom_objects)
    legacy = "legacy" in str(config.get("module", "")) or config.get("config", {}).get("is_legacy_optimizer", True)
    return keras.optimizers.deserialize(config, custom_objects=custom_objects, use_legacy_optimizer=legacy)


def current_learning_rate(optimizer: Any) -> tf.Tensor:
    """The learning rate of the update that the optimizer would make now, as a scalar tensor.

    Read it before the optimizer applies anything: that advances its iterations.
    """
    if IS_KERAS_3:
        return tf.convert_to_tensor(optimizer.learning_rate)
    if isinstance(optimizer, keras.optimizers.legacy.Optimizer):
        return optimizer._decayed_lr(tf.float32)
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        # `learning_rate` is the rate of the previous update.
        return tf.convert_to_tensor(rate(optimizer.iterations))
    return tf.convert_to_tensor(rate)


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the optimizer's slots, unless it has them."""
    with tf.init_scope():
        if not IS_KERAS_3 and isinstance(optimizer, keras.optimizers.legacy.Optimizer):
            optimizer._create_all_weights(variables)
        elif not getattr(optimizer, "built", False):
            optimizer.build(variables)


def apply_optimizer(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Lets a Keras optimizer apply gradients as they are, without any aggregation of its own."""
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def tf_variable(variable: Any) -> tf.Variable:
    """The TensorFlow variable in a Keras 3 variable, or the variable itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value
