"""One of two ranks, each of which is a machine, that transfer rows into replicated and sharded tables.

Argument: the folder for results, which both machines see.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import errors
from tf_sparse_ps.rows import export_rows

keras = tf.keras
DIM, N = 4, 3000
KEYS = np.random.default_rng(1).permutation(10 * N)[:N].astype(np.int64)
ROWS = np.random.default_rng(2).normal(size=(N, DIM)).astype(np.float32)
PLACEMENTS = ("replicated", tsps.Sharded())


def made(placement: Any, name: str) -> Any:
    layer = tsps.Embedding(None, DIM, placement=placement, name=name)
    layer.build(None)
    return layer


def check(layer: Any, keys: Any, rows: Any) -> None:
    """Compares rows, which every rank looks up, and the rows that this machine has."""
    np.testing.assert_array_equal(layer(tf.constant(keys)).numpy(), rows)
    table = layer.bindings[0].reader()
    kept = np.ones(len(keys), np.bool_) if table.shard is None else table.shard.has(keys)
    np.testing.assert_array_equal(np.sort(table.keys()), np.sort(keys[kept]))


def train(layer: Any, ranks: Any) -> None:
    """Makes a step, in which the ranks compare what they have written."""
    inputs = keras.Input((2,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(layer(inputs))))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    ids = KEYS[: 2 * ranks.size].reshape(ranks.size, 2)[ranks.rank : ranks.rank + 1]
    model.fit(ids, np.ones((1, 1), np.float32), verbose=0)


def main() -> None:
    """Prints a line at the end."""
    this_rank.init()
    ranks, folder = tsps.collectives.current(), Path(sys.argv[1])
    layers = []
    for placement in PLACEMENTS:
        layer = made(placement, "words")
        assert tsps.transfer((KEYS, ROWS), layer) == N
        check(layer, KEYS, ROWS)
        layers.append(layer)
        if ranks.rank == 0 and placement == "replicated":
            export_rows(layer.bindings[0].reader(), folder / "words.npz")
    ranks.barrier("test.exported")
    for layer in layers:
        train(layer, ranks)  # so that the tables have slots
    trained = layers[0].bindings[0].reader().scan().read()
    for placement in PLACEMENTS:
        for source in layers:
            target = made(placement, "copy")
            assert tsps.transfer(source, target, slots=True) == N
            target_rows = layers[0](tf.constant(KEYS)).numpy()
            check(target, KEYS, target_rows)
            table = target.bindings[0].reader()
            mine = np.ones(N, np.bool_) if table.shard is None else table.shard.has(trained.keys)
            present, _, slots = table.entries(trained.keys)
            np.testing.assert_array_equal(present, mine)
            np.testing.assert_array_equal(slots[0][mine], trained.slots[0][mine])
            train(target, ranks)
        chosen = made(placement, "chosen")
        mapping = (KEYS[:100], KEYS[:100] + 100_000)
        assert tsps.transfer(folder / "words.npz", chosen, keys=KEYS[50:], mapping=mapping) == 50
        check(chosen, KEYS[50:100] + 100_000, ROWS[50:100])

    # Ranks that do not agree, or of which one cannot read its source, all fail and write nothing.
    for placement in PLACEMENTS:
        target = made(placement, "untouched")
        with pytest.raises(ValueError, match="source: rank 0 has checksums"):
            tsps.transfer((KEYS, ROWS + ranks.rank), target)
        with pytest.raises((errors.NotFoundError, errors.StateError), match=r"missing\.npz does not exist"):
            tsps.transfer(folder / ("words.npz" if ranks.rank else "missing.npz"), target)
        assert len(target.bindings[0].reader()) == 0

    # Rows that a table cannot have: no rank waits for another one.
    for source in layers:
        for placement in PLACEMENTS:
            bounded = tsps.Embedding(N, DIM, placement=placement)
            bounded.build(None)
            with pytest.raises((errors.KeyRangeError, errors.StateError), match="a row would get key"):
                tsps.transfer(source, bounded)

    # A converted model looks up the same rows, also of sharded tables.
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(50, DIM), keras.layers.Flatten()])
    ids = np.arange(50).reshape(25, 2)
    for placement in PLACEMENTS:
        converted = tsps.convert(model, placement=placement)
        np.testing.assert_array_equal(converted(ids), model(ids.astype(np.float32)))
    ranks.barrier("test.end")
    print("rank is done", flush=True)


main()
