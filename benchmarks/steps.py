"""Lookups and training steps of a layer, as the suites time them. They are the same for every library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

_FILL = 1 << 18


def lookup(layer: Any) -> Callable[[tf.Tensor], Any]:
    """Returns a traced call of `layer`."""
    return tf.function(lambda ids: layer(ids), reduce_retracing=True)


def train_step(layer: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """Returns a traced step: lookup, backward with given output gradients, update. It has no loss and no dense part.

    Args:
        layer: A layer of ids, which is built. If it returns a list of outputs, the step's gradients are stacked, or
            flat and one after another.
        optimizer: An object with `apply_gradients`.
    """

    def step(ids: Any, gradients: Any) -> None:
        with tf.GradientTape() as tape:
            rows = layer(ids)
        variables = layer.trainable_variables
        if isinstance(rows, list):
            gradients = _of_outputs(rows, gradients)
        gradients = tf.nest.map_structure(lambda gradient, row: tf.cast(gradient, row.dtype), gradients, rows)
        table_gradients = tape.gradient(rows, variables, output_gradients=gradients)
        optimizer.apply_gradients(list(zip(table_gradients, variables, strict=True)))

    return tf.function(step, reduce_retracing=True)


def _of_outputs(rows: list[tf.Tensor], gradients: tf.Tensor) -> list[tf.Tensor]:
    """Separates the gradients of a list of outputs, without a copy."""
    if gradients.shape.rank > 1:
        return tf.unstack(gradients)
    parts = tf.split(gradients, [row.shape.num_elements() for row in rows])
    return [tf.reshape(part, row.shape) for part, row in zip(parts, rows, strict=True)]


def fill(step: Callable[[Any, Any], Any], rows: int, dim: int) -> None:
    """Inserts the keys 0 .. rows - 1 into a table. Training inserts rows, so this trains them with zero gradients."""
    size = min(_FILL, max(1, rows // 4))  # a table that evicts must have space for each step
    for start in range(0, rows, size):
        keys = np.arange(start, min(start + size, rows))
        step(tf.constant(keys), tf.zeros([keys.size, dim]))
