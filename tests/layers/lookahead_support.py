"""Models with a table that is mostly on disk, the same models in memory, and data for both."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from layer_support import functional, keras

import tf_sparse_ps as tsps

ROWS, DIM, BATCH, BATCHES = 3000, 4, 64, 24
MEMORY = 1_790_000  # 1.5 MiB for buffers, and space for some 1,300 rows


def dataset(batches: int = BATCHES, seed: int = 0) -> tf.data.Dataset:
    random = np.random.default_rng(seed)
    ids = random.integers(0, ROWS, (batches * BATCH, 3))
    return tf.data.Dataset.from_tensor_slices((ids, random.normal(size=(len(ids), 1)).astype(np.float32))).batch(BATCH)


class Subclassed(keras.Model):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.words, self.flat, self.out = layer, keras.layers.Flatten(), keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.out(self.flat(self.words(ids)))


def sequential(layer: Any) -> Any:
    return keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])


def built(storage: Any, make: Any = functional, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = make(tsps.Embedding(ROWS, DIM, "ones", storage=storage))
    model(tf.zeros([1, 3], tf.int64))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse", **options)
    return model


def table_of(model: Any) -> Any:
    return next(layer for layer in model.layers if isinstance(layer, tsps.Embedding)).bindings[0].reader()


def content(model: Any) -> list[np.ndarray]:
    keys = np.arange(ROWS)
    _, rows, slots = table_of(model).entries(keys)
    return [rows, *slots]


def assert_equal(a: Any, b: Any) -> None:
    for x, y in zip(content(a), content(b), strict=True):
        np.testing.assert_array_equal(x, y)
