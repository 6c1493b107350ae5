"""Twins: a model with our embedding and one with Keras's, with the same weights and the same data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

keras = _keras.keras
KERAS_3 = _keras.IS_KERAS_3
ROWS, DIM, BATCH = 12, 3, 4

# Every batch has every id once: lazy and dense updates are then the same, and no id is twice in a gradient.
_random = np.random.default_rng(5)
IDS = np.concatenate([_random.permutation(ROWS).reshape(BATCH, 3) for _ in range(6)])
TARGETS = _random.normal(size=(len(IDS), 1)).astype(np.float32)


def optimizer(name: str, *args: Any, **options: Any) -> Any:
    """A Keras optimizer by name; "legacy." in front for Keras 2's legacy ones."""
    home = keras.optimizers.legacy if name.startswith("legacy.") else keras.optimizers
    return getattr(home, name.removeprefix("legacy."))(*args, **options)


def model(layer: Any) -> Any:
    """ids[batch, 3] -> layer -> one output."""
    ids = keras.layers.Input((3,), dtype="int64")
    hidden = keras.layers.Dense(4, activation="tanh")(keras.layers.Flatten()(layer(ids)))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def twins(make: Callable[[], Any], *, wrap: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Any]:
    """Ours and Keras's model, compiled; `make` makes an optimizer, `options` go to both `compile`."""
    theirs = model(keras.layers.Embedding(ROWS, DIM))
    ours = model(tsps.Embedding(ROWS, DIM))
    ours.set_weights(theirs.get_weights())
    theirs.compile(make(), "mse", **options)
    ours.compile(tsps.DistributedOptimizer(make(), **(wrap or {})), "mse", **options)
    return ours, theirs


def fit(one: Any, epochs: int = 3, callbacks: list[Any] | None = None) -> Any:
    """Trains in the data's order; returns the history."""
    return one.fit(IDS, TARGETS, BATCH, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks or [])


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of weights, relative to each one's largest."""
    pairs = zip(ours.get_weights(), theirs.get_weights(), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
