"""The optimizers of the suites."""

from __future__ import annotations

from typing import Any

import keras

import tf_sparse_ps as tsps
from benchmarks import harness


def adagrad() -> keras.optimizers.Optimizer:
    """Returns Keras's Adagrad with the benchmarks' learning rate."""
    return keras.optimizers.Adagrad(harness.LEARNING_RATE)


def ours() -> Any:
    """Returns the same rule for tables."""
    return tsps.DistributedOptimizer(adagrad())
