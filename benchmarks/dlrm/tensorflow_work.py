"""`Work` of the frameworks that train with TensorFlow, and DLRM over `keras.layers.Embedding`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.dlrm.clicks import DENSE, FEATURES, Batch
from benchmarks.dlrm.job import Settings, Work


class KerasDlrm(keras.Model):
    """DLRM as in examples/ctr/models.py, with a `keras.layers.Embedding` for each feature."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(name="dlrm")
        self.embeddings = [keras.layers.Embedding(rows, settings.dim) for rows in settings.tables]
        self.bottom = _mlp((*settings.bottom, settings.dim))
        self.top = _mlp(settings.top)
        self.top.add(keras.layers.Dense(1))

    def call(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns logits, float32[batch, 1]. `inputs`: `dense` float32[batch, 13], `ids` int64[batch, 26]."""
        dense = self.bottom(inputs["dense"])
        columns = tf.unstack(inputs["ids"], num=FEATURES, axis=1)
        rows = [embedding(ids) for embedding, ids in zip(self.embeddings, columns, strict=True)]
        vectors = tf.stack([dense, *rows], axis=1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        return self.top(tf.concat([dense, tf.reshape(products, [-1, (FEATURES + 1) ** 2])], axis=1))


def _mlp(widths: Sequence[int]) -> keras.Sequential:
    return keras.Sequential([keras.layers.Dense(width, activation="relu") for width in widths])


def set_threads(settings: Settings) -> None:
    """Sets TensorFlow's numbers of threads, as `make train` does. It must be called first."""
    tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)


def build(model: keras.Model) -> None:
    """Makes the weights of a model."""
    model({"dense": tf.zeros([1, DENSE]), "ids": tf.zeros([1, FEATURES], tf.int64)})


def adagrad(settings: Settings) -> keras.optimizers.Optimizer:
    """Returns the optimizer of a job."""
    return keras.optimizers.Adagrad(settings.learning_rate, initial_accumulator_value=0.0, epsilon=settings.epsilon)


def loss(model: keras.Model, inputs: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean binary cross-entropy of a batch."""
    logits = model(inputs, training=True)[:, 0]
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def work(
    model: keras.Model,
    step: Callable[[Any, tf.Tensor], object],
    rank: int,
    size: int,
    gather: Callable[[float], list[float]],
) -> Work:
    """Returns the work of a model.

    Args:
        model: The model, which is built.
        step: A tf.function that trains inputs and labels.
        rank, size: The rank, and the number of ranks.
        gather: See `Work`.
    """
    score = tf.function(lambda inputs: model(inputs, training=False)[:, 0])
    return Work(
        rank,
        size,
        lambda batch: step(_inputs(batch), tf.constant(batch.labels)),
        lambda batch: np.asarray(score(_inputs(batch))),
        gather,
    )


def _inputs(batch: Batch) -> dict[str, tf.Tensor]:
    return {"dense": tf.constant(batch.dense), "ids": tf.constant(batch.ids)}
