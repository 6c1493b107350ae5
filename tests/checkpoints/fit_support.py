"""A small job in `fit`, with arrays, for tests that interrupt it and compare its final content."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints.job_state import JobState
from tf_sparse_ps.checkpoints.tables import of as tables_of

keras = _keras.keras
SAMPLES, BATCH, LIMIT = 38, 8, 30  # the last batch has 6 samples
BATCHES = 5
random = np.random.default_rng(5)
IDS = random.integers(0, LIMIT, (SAMPLES, 2))
EXTRA = random.normal(size=(SAMPLES, 3))  # of 64 bits, as NumPy's floats are
Y = random.normal(size=(SAMPLES, 1))
WEIGHT = random.uniform(0.5, 2, SAMPLES)


class Ended(Exception):
    """Ends a job in the middle."""


class End(keras.callbacks.Callback):
    """Ends the job after a number of updates."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(tf.convert_to_tensor(self.model.optimizer.iterations)) == self._at:
            raise Ended


def make_model(*, named: bool = False) -> Any:
    """Returns a model with fixed initial weights and two inputs, by name or by position."""
    keras.utils.set_random_seed(3)
    ids, extra = keras.Input((2,), dtype="int64", name="ids"), keras.Input((3,), name="extra")
    rows = keras.layers.Flatten()(tsps.Embedding(LIMIT, 3)(ids))
    joined = keras.layers.Concatenate()([rows, extra])
    inputs = {"ids": ids, "extra": extra} if named else [ids, extra]
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
    for binding in tables_of(model):
        binding.assign(np.arange(LIMIT), np.random.default_rng(0).normal(size=(LIMIT, 3)).astype(np.float32))
    return model


def content(model: Any) -> list[Any]:
    """Returns the rows, their slots and the dense variables."""
    arrays: list[Any] = []
    for binding in tables_of(model):
        keys, rows, slots, _ = binding.reader().scan(slots=True).read()
        order = np.argsort(keys)
        arrays += [keys[order], rows[order], *(slot[order] for slot in slots)]
    state = JobState(model, model.optimizer, {}, tsps.collectives.resolve("local"))
    return arrays + [entry.variable.numpy() for entry in state.variables() if entry.kind != "metric"]


def must_equal(model: Any, other: Any) -> None:
    for a, b in zip(content(model), content(other), strict=True):
        np.testing.assert_array_equal(a, b)
