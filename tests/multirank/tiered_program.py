"""One rank of the test that a table which is mostly on disk is trained like a table in memory.

Arguments: rows of a batch; the folder for results.
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
IDS, DIM, WIDTH, STEPS = 4000, 4, 5, 30
MEMORY = 1_840_000  # 1.5 MiB of buffers, and space for some 1,400 rows
KINDS = {"Adagrad": lambda: keras.optimizers.Adagrad(0.1), "Adam": lambda: keras.optimizers.Adam(0.01)}


def content(layer: Any) -> list[Any]:
    """Returns keys, rows and slots in the order of the keys."""
    reader = layer.bindings[0].reader()
    keys = np.sort(reader.keys())
    _, rows, slots = reader.entries(keys)
    return [keys, rows, *slots]


def equal(a: list[Any], b: list[Any]) -> bool:
    """Whether two contents are equal."""
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def train(kind: str, path: Path) -> None:
    """Trains two tables that begin with the same rows and get the same gradients. One of them is on disk."""
    ranks = tsps.collectives.current()
    random = np.random.default_rng(ranks.rank)
    storage = tsps.Tiered(path / "disk", memory=MEMORY)
    memory = tsps.Embedding(None, DIM, "ones", name=f"memory_{kind}")
    tiered = tsps.Embedding(None, DIM, "ones", name=f"tiered_{kind}", storage=storage)
    inputs = keras.Input((WIDTH,), dtype="int64")
    sums = keras.layers.Add()([memory(inputs), tiered(inputs)])
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(sums)))
    model.compile(tsps.DistributedOptimizer(KINDS[kind]()), "mse")
    rows = int(sys.argv[1])
    x = random.zipf(1.2, (STEPS * rows, WIDTH)) % IDS
    y = random.normal(size=(STEPS * rows, 1)).astype(np.float32)
    model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, validation_data=(x[:rows], y[:rows]))
    assert np.array_equal(memory(x[:64]), tiered(x[:64]))
    stats = tiered.bindings[0].reader().stats()
    assert stats["rows_on_disk"] > stats["row_capacity"] / 2, stats
    assert equal(content(memory), content(tiered)), kind
    digests = ranks.allgather_object([array.tobytes() for array in content(tiered)], f"test.{kind}")
    assert all(digest == digests[0] for digest in digests), kind


def main() -> None:
    this_rank.init()
    path = Path(sys.argv[2])
    for kind in KINDS:
        train(kind, path)
    tsps.collectives.current().barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
