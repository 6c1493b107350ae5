"""The model of the tests of served versions. Programs that the tests kill import it, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

keras = _keras.keras
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
