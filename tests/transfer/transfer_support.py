"""What the tests that move rows share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "layers"))

import numpy as np
from layer_support import FOLDER  # sets the folder of tables of this process

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.rows import sources
from tf_sparse_ps.table.scan import Block, concatenated

__all__ = ["FOLDER"]

keras = _keras.keras


def trained(layer: Any, optimizer: Any = None, steps: int = 3) -> tuple[Any, Any]:
    """Trains a layer for some steps; returns it, and its model."""
    random = np.random.default_rng(2)
    inputs = keras.Input((2,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile(tsps.DistributedOptimizer(optimizer or keras.optimizers.Adagrad(0.1)), "mse")
    for _ in range(steps):
        model.train_on_batch(random.integers(0, 60, (32, 2)), random.normal(size=(32, 1)).astype(np.float32))
    return layer, model


def block_of(source: Any) -> Block:
    """Returns all rows and slots of a layer, a table or a path, in the order of the keys."""
    opened = sources.opened(source.bindings[0].reader() if hasattr(source, "bindings") else source)
    block = concatenated(list(opened.blocks(opened.facts.optimizer != "none")))
    order = np.argsort(block.keys)
    return Block(block.keys[order], block.rows[order], tuple(slot[order] for slot in block.slots), {})
