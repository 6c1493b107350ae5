"""Optimizers of the suites."""

from __future__ import annotations

from typing import Any

import keras

import tf_sparse_ps as tsps
from benchmarks import harness


def adagrad() -> keras.optimizers.Optimizer:
    """Keras's Adagrad at the benchmarks' learning rate."""
    return keras.optimizers.Adagrad(harness.LEARNING_RATE)


def ours() -> Any:
    """The same rule for tables."""
    return tsps.DistributedOptimizer(adagrad())
