"""The Keras layer of tensorflow-recommenders-addons, with the optimizer wrapper of that library."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported

import tensorflow as tf
import tensorflow_recommenders_addons.dynamic_embedding as de

from benchmarks import harness
from benchmarks.peers import Calls, Work, tensorflow_work


def one_table(work: Work) -> Calls:
    """Makes the calls of lookup and step, on a table that has all rows."""
    tensorflow_work.set_threads(work.threads)
    layer = de.keras.layers.Embedding(
        work.dim,
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        devices=["/CPU:0"],
        init_capacity=2 * work.rows,
        name="peer",
    )
    layer.build(None)
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adagrad(harness.LEARNING_RATE))
    return tensorflow_work.calls(layer, optimizer, work, tensorflow_work.all_rows(work))
