"""Lookup and step of a layer under TensorFlow, for the peers that are layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import harness

LEARNING_RATE = 0.01
FILL = 1 << 18


def set_threads(threads: int) -> None:
    """Before anything else."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def cases(
    layer: Any, optimizer: Any, ids: Sequence[np.ndarray], gradients: Sequence[np.ndarray], *, fill: int = 0
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A traced lookup, and a traced step: lookup, backward with given output gradients, update.

    Args:
        layer: of ids, built.
        optimizer: with `apply_gradients`.
        ids, gradients: batches, which take turns.
        fill: bring the keys 0 .. fill - 1 in first, by steps with gradients of 0.
    """
    look = tf.function(lambda one: layer(one), reduce_retracing=True)

    def step(one: Any, gradient: Any) -> None:
        with tf.GradientTape() as tape:
            found = layer(one)
        variables = layer.trainable_variables
        grads = tape.gradient(found, variables, output_gradients=tf.cast(gradient, found.dtype))
        optimizer.apply_gradients(list(zip(grads, variables, strict=True)))

    train = tf.function(step, reduce_retracing=True)
    dim = gradients[0].shape[1]
    for start in range(0, fill, FILL):
        keys = np.arange(start, min(start + FILL, fill))
        train(tf.constant(keys), tf.zeros([keys.size, dim]))
    next_ids = harness.Cycle([tf.constant(one) for one in ids])
    next_gradients = harness.Cycle([tf.constant(one) for one in gradients])
    return lambda: look(next_ids()), lambda: train(next_ids(), next_gradients())
