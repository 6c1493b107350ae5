"""The Keras layer of tensorflow-recommenders-addons, with its wrapper of an optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons.dynamic_embedding as de

from benchmarks.peers import tensorflow_work


def make(
    *, rows: int, dim: int, ids: Sequence[np.ndarray], gradients: Sequence[np.ndarray], threads: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Lookup and step of a table that has all rows."""
    tensorflow_work.set_threads(threads)
    layer = de.keras.layers.Embedding(
        dim, key_dtype=tf.int64, value_dtype=tf.float32, devices=["/CPU:0"], init_capacity=2 * rows, name="peer"
    )
    layer.build(None)
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adagrad(tensorflow_work.LEARNING_RATE))
    return tensorflow_work.cases(layer, optimizer, ids, gradients, fill=rows)
