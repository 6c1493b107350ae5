"""A restore brings slots back, and does not warn that slots are reset."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps

pytestmark = pytest.mark.keras2_smoke

keras = tf.keras
IDS = np.random.default_rng(0).integers(0, 50, (32, 3))


def make(_: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, np.ones((32, 1), np.float32))).batch(8)


def train(folder: Path, epochs: int) -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,), dtype="int64")
    layer = tsps.Embedding(None, 4)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.05)), "mse")  # accumulators begin at 0.1
    checkpoint = tsps.callbacks.Checkpoint(str(folder), every_steps=4)
    model.fit(checkpoint.dataset(make), epochs=epochs, verbose=0, callbacks=[checkpoint])
    table = layer.bindings[0].reader()
    block, seed = table.scan().read(), table.stats()["index_seed"]
    order = np.argsort(block.keys)
    return block.rows[order], block.slots[0][order], seed


def test_adagrads_accumulators_go_on_without_a_warning(tmp_path: Path) -> None:
    *_, first_seed = train(tmp_path / "broken", 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*slots are reset")
        *resumed, seed = train(tmp_path / "broken", 2)
    assert seed == first_seed, "an empty table must take over the index seed of the checkpoint"
    *uninterrupted, other_seed = train(tmp_path / "whole", 2)
    assert other_seed != first_seed
    for actual, expected in zip(resumed, uninterrupted, strict=True):
        np.testing.assert_array_equal(actual, expected)
