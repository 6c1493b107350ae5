"""One rank, alone on its node, of a named job whose tables admit and evict.

Arguments: "make" to end after the tables were made, "save" to save them before the first step, or "train"; the folder
for results.

It writes the rows of its node to `<table>-<rank>.npz`: after some steps, and after further ones that follow a load of
weights on rank 0 alone, which the other node copies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps

keras = tf.keras
BATCH, IDS = 20, 1500


def batches(rank: int, seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and targets of n batches."""
    random = np.random.default_rng([rank, seed])
    return random.integers(0, IDS, (n * BATCH, 4)), random.normal(size=(n * BATCH, 1)).astype(np.float32)


def save(folder: Path, when: str, layers: list[Any]) -> None:
    """Writes the rows of this node's tables by key."""
    for number, layer in enumerate(layers):
        table = layer.bindings[0].reader()
        keys = np.sort(table.keys())
        np.savez(folder / f"{when}{number}-{this_rank.rank()}.npz", keys=keys, rows=table.lookup(keys))


def main() -> None:
    """Runs the rank."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    this_rank.init()
    layers = [
        tsps.Embedding(None, 3, eviction=tsps.Eviction(max_rows=1000, policy="lru")),
        tsps.Embedding(None, 3, admission=tsps.Admission(3, 1500)),
    ]
    inputs = keras.Input([4], dtype="int64")
    flat = [keras.layers.Flatten()(layer(inputs)) for layer in layers]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(flat)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    if what == "make":
        return
    if what == "save":
        if this_rank.rank() == 0:
            layers[0].bindings[0].assign(np.arange(100), np.ones((100, 3), np.float32))
        checkpointer = tsps.Checkpointer(folder / "checkpoints", model, model.optimizer)
        checkpointer.save()
        checkpointer.wait()
        save(folder, "saved", layers)
        np.save(folder / f"dense-{this_rank.rank()}.npy", model.layers[-1].kernel.numpy())
        return

    def fit(seed: int, n: int, callbacks: list[Any]) -> None:
        ids, targets = batches(this_rank.rank(), seed, n)
        model.fit(ids, targets, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks)

    fit(1, 25, [])
    save(folder, "trained", layers)
    if this_rank.rank() == 0:
        weights = str(folder / "model.weights.h5")
        model.save_weights(weights)
        model.load_weights(weights)
    fit(2, 2, [tsps.callbacks.BroadcastVariables()])
    save(folder, "loaded", layers)


if __name__ == "__main__":
    main()
