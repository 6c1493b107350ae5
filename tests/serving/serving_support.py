"""What the tests of served versions share: a trained model, and comparisons of its tables with versions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1] / "layers"))

from layer_support import keras

import tf_sparse_ps as tsps
from tf_sparse_ps.serving.version import Version

DIM = 8


def make_model(**options: Any) -> tuple[Any, Any]:
    """Returns a compiled model of two ids per sample, and its layer."""
    layer = tsps.Embedding(None, DIM, name="words", **options)
    model = keras.Sequential([keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5)), "mse")
    return model, layer


def train(model: Any, keys: npt.ArrayLike) -> None:
    """Makes a step with some keys, an even number of them."""
    ids = np.asarray(keys, np.int64).reshape(-1, 2)
    model.train_on_batch(ids, np.ones((len(ids), 1), np.float32))


def must_equal(version: Path, model: Any, layer: Any) -> None:
    """Compares a version with the model: all rows, absent keys, the keys that it has, and the answers."""
    import tensorflow as tf

    reader = layer.bindings[0].reader()
    keys = np.sort(reader.keys())
    asked = np.concatenate([keys, keys + 10**9, -1 - keys])
    table = tsps.ServingTable.open(version)
    np.testing.assert_array_equal(table.lookup(asked), reader.lookup(asked))
    np.testing.assert_array_equal(table.contains(asked), np.arange(len(asked)) < len(keys))
    found = np.concatenate([np.empty(0, np.int64), *table.key_parts()])
    np.testing.assert_array_equal(np.sort(found), keys)
    assert table.step == reader.step == Version(version).manifest.step
    ids = asked[: len(asked) // 2 * 2].reshape(-1, 2)
    served = tf.saved_model.load(os.fspath(version)).signatures["serving_default"]
    (answers,) = served(tf.constant(ids)).values()
    np.testing.assert_array_equal(answers, model(ids))


def files_of(version: Path) -> list[str]:
    """Returns the kinds of the files of the only table of a version, newest first."""
    return [Path(file.path).name.split("-")[0] for file in Version(version).tables[0].files]
