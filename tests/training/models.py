"""Twins: a model with the embedding of tsps and one with Keras's, with the same weights and the same data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

keras = _keras.keras
KERAS_3 = _keras.IS_KERAS_3
ROWS, DIM, BATCH = 12, 3, 4

# Every batch contains every id once. Lazy and dense updates are then the same, and no gradient repeats an id.
_random = np.random.default_rng(5)
IDS = np.concatenate([_random.permutation(ROWS).reshape(BATCH, 3) for _ in range(6)])
TARGETS = _random.normal(size=(len(IDS), 1)).astype(np.float32)


def optimizer(name: str, *args: Any, **options: Any) -> Any:
    """Returns a Keras optimizer by name. "legacy." before the name selects a legacy optimizer of Keras 2."""
    home = keras.optimizers.legacy if name.startswith("legacy.") else keras.optimizers
    return getattr(home, name.removeprefix("legacy."))(*args, **options)


def model(layer: Any) -> Any:
    """Returns a model: ids[batch, 3] -> layer -> one output."""
    ids = keras.layers.Input((3,), dtype="int64")
    hidden = keras.layers.Dense(4, activation="tanh")(keras.layers.Flatten()(layer(ids)))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def twins(make: Callable[[], Any], *, wrap: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Any]:
    """Returns the tsps and the Keras model, compiled.

    Args:
      make: Makes an optimizer.
      wrap: The options of DistributedOptimizer.
      options: The options of both `compile` calls.
    """
    keras_model = model(keras.layers.Embedding(ROWS, DIM))
    tsps_model = model(tsps.Embedding(ROWS, DIM))
    tsps_model.set_weights(keras_model.get_weights())
    keras_model.compile(make(), "mse", **options)
    tsps_model.compile(tsps.DistributedOptimizer(make(), **(wrap or {})), "mse", **options)
    return tsps_model, keras_model


def fit(trained_model: Any, epochs: int = 3, callbacks: list[Any] | None = None) -> Any:
    """Trains in the data's order, and returns the history."""
    return trained_model.fit(IDS, TARGETS, BATCH, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks or [])


def difference(tsps_model: Any, keras_model: Any) -> float:
    """Returns the largest difference of weights, relative to the largest value of each weight."""
    pairs = zip(tsps_model.get_weights(), keras_model.get_weights(), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
