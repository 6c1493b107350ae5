"""The graph of a functional or sequential Keras model: its inputs, and the layers that use them.

Checked with Keras 3.15 and Keras 2.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def is_plain_model(model: Any) -> bool:
    """Whether a model is a functional or sequential model of Keras, and not of a class that derives from these."""
    cls = type(model)
    return cls.__module__.split(".")[0] in ("keras", "tf_keras") and cls.__name__ in ("Functional", "Sequential")


def inputs_of(model: Any) -> list[Any]:
    """Returns the symbolic inputs of a model. Empty: the model is sequential, and its input shape is not known."""
    try:
        inputs = model.inputs
    except (AttributeError, ValueError):  # Keras 3: the sequential model is not built
        return []
    return list(inputs or ())


def input_layer_of(tensor: Any) -> Any:
    """Returns the InputLayer that made a symbolic input."""
    return tensor._keras_history[0]


def users_of(layer: Any) -> list[Any]:
    """Returns the layers and operations that take an output of a layer as an input, in any model."""
    return [getattr(node, "operation", None) or node.layer for node in layer._outbound_nodes]


@contextlib.contextmanager
def not_compiled(model: Any) -> Iterator[None]:
    """Lets `keras.models.clone_model` make a clone that is not compiled. Keras 3 would compile it as the model is."""
    compiled = getattr(model, "compiled", None)
    if compiled is not True:
        yield
        return
    model.compiled = False
    try:
        yield
    finally:
        model.compiled = compiled
