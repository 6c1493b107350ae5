"""One rank of the test that rows which Python wrote are the same on all nodes when training begins.

Argument: the folder for results.
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
IDS = np.array([[1, 2, 3], [3, 0, 9]], np.int64)


def content(layer: Any) -> list[Any]:
    """Returns keys, rows and slots in the order of the keys, as lists."""
    reader = layer.bindings[0].reader()
    keys = np.sort(reader.keys())
    _, rows, slots = reader.entries(keys)
    return [keys.tolist(), rows.tolist(), [slot.tolist() for slot in slots]]


def train(model: Any) -> None:
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    model.fit(IDS, np.ones((2, 1), np.float32), verbose=0)


def main() -> None:
    """Writes rows in every way, trains, saves, loads. All ranks must have the same contents afterwards."""
    this_rank.init()
    ranks = tsps.collectives.current()

    def same(layer: Any, label: str) -> None:
        everyone = ranks.allgather_object(content(layer), f"test.{label}")
        assert everyone[0][0], f"{label}: the table is empty"
        different = [rank for rank, rank_content in enumerate(everyone) if rank_content != everyone[0]]
        assert not different, f"{label}: ranks {different} differ from rank 0"

    random = tsps.Embedding(10, 4, "orthogonal", name="random")  # each leader draws other values
    loaded = tsps.Embedding(None, 4, name="loaded")
    everywhere = tsps.Embedding(10, 4, name="everywhere")
    inputs = keras.Input((3,), dtype="int64")
    sums = keras.layers.Add()([layer(inputs) for layer in (random, loaded, everywhere)])
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(sums)))
    if ranks.rank == 0:  # the other ranks do not know about this
        loaded.bindings[0].assign(np.array([2, -7, 2**60]), np.arange(12, dtype=np.float32).reshape(3, 4))
    everywhere.set_weights([np.arange(40, dtype=np.float32).reshape(10, 4)])
    assert everywhere(IDS).numpy()[0, 0].tolist() == [4, 5, 6, 7], "a rank reads before its leader has written"
    train(model)
    for layer in (random, loaded, everywhere):
        same(layer, layer.name)
    assert -7 in content(loaded)[0]

    path = Path(sys.argv[1]) / "model.keras"
    if ranks.rank == 0:
        model.save(path)
    ranks.barrier("test.saved")
    again = keras.models.load_model(path, compile=False)
    for layer in (random, loaded, everywhere):
        assert content(again.get_layer(layer.name)) == content(layer), layer.name
    train(again)
    for layer in (random, loaded, everywhere):
        same(again.get_layer(layer.name), f"{layer.name}.again")
    ranks.barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
