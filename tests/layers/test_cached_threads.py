"""Lookups beside the steps of another thread return the rows of their own ids from a table with a device cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops

ROWS, SLOTS, PER_SAMPLE, BATCH = 60, 20, 3, 6
VALUES = np.tile(np.arange(ROWS, dtype=np.float32)[:, np.newaxis], (1, 4))  # every number of a row is its id
CACHE = tsps.DeviceCache(rows=SLOTS, policy="lru")
IDS = tf.constant(np.random.default_rng(1).permutation(ROWS))
Layer = tsps.Embedding


def make(**options: Any) -> Layer:
    layer = tsps.Embedding(ROWS, 4, weights=VALUES, cache=CACHE, **options)
    layer.build(None)
    return layer


def step_of(layer: Layer, graph: bool = True) -> Callable[[tf.Tensor], None]:
    """Returns a step that moves the rows of its ids to the device, and changes none of them."""
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.0))

    def step(ids: tf.Tensor) -> None:
        layer((ids + 7) % ROWS)  # looked up without training
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids)) + tf.reduce_sum(layer(ids[:5]))
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        layer((ids + 9) % ROWS)

    return tf.function(step) if graph else step


LOOKUPS: dict[str, Callable[[Layer], np.ndarray[Any, Any]]] = {
    "eager": lambda layer: layer(IDS).numpy(),
    "graph": lambda layer: tf.function(lambda ids: layer(ids))(IDS).numpy(),
    "dataset": lambda layer: next(iter(tf.data.Dataset.from_tensors(IDS).map(lambda ids: layer(ids)))).numpy(),
}


class _Steps:
    """Makes steps in the middle of lookups, as another thread would."""

    def __init__(self, layer: Layer, monkeypatch: pytest.MonkeyPatch, moment: str, steps: int) -> None:
        self.remaining, self._made = steps, 1
        self._step = step_of(layer)
        self._step(tf.range(SLOTS, dtype=tf.int64))  # traced before the ops are replaced
        take, check = _ops.cache_take, _ops.cache_check_taken

        def cache_take(cache: tf.Tensor, ids: Any) -> _ops.Taken:
            taken = take(cache, ids)
            if moment != "before the read":
                return taken
            with tf.control_dependencies([*taken.inverses, *self._between()]):
                return _ops.Taken([tf.identity(inverse) for inverse in taken[0]], *map(tf.identity, taken[1:]))

        def cache_check_taken(*arguments: Any) -> tf.Tensor:
            with tf.control_dependencies(self._between() if moment == "after the read" else []):
                return check(*arguments)

        monkeypatch.setattr(_ops, "cache_take", cache_take)
        monkeypatch.setattr(_ops, "cache_check_taken", cache_check_taken)

    def _between(self) -> list[tf.Tensor]:
        return [tf.py_function(self._make, [], tf.int64)]

    def _make(self) -> int:
        if self.remaining:
            self.remaining -= 1
            self._made += 1
            self._step(tf.range(SLOTS, dtype=tf.int64) + self._made % 3 * SLOTS)  # all rows on the device are replaced
        return 0


def wrong(rows: np.ndarray[Any, Any], ids: tf.Tensor = IDS) -> int:
    """Returns the number of rows that are not those of their ids."""
    return int(np.any(rows != VALUES[ids.numpy()], axis=1).sum())


@pytest.mark.parametrize("moment", ["before the read", "after the read"])
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_lookup_that_steps_disturb_is_repeated(lookup: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make()
    steps = _Steps(layer, monkeypatch, moment, 4)
    before = layer.cache_statistics()
    assert wrong(LOOKUPS[lookup](layer)) == 0
    assert steps.remaining == 0
    after = layer.cache_statistics()
    assert after["evicted"] - before["evicted"] == 4 * SLOTS
    assert wrong(LOOKUPS[lookup](layer)) == 0


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_without_the_check_rows_of_other_ids_are_returned(lookup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    layer = make()
    _Steps(layer, monkeypatch, "before the read", 1)
    monkeypatch.setattr(_ops, "cache_check_taken", lambda *_: tf.constant(0, tf.int64))
    assert wrong(LOOKUPS[lookup](layer)) == SLOTS


@pytest.mark.parametrize("lookup", ["eager", "graph"])
def test_a_lookup_that_steps_always_disturb_fails(lookup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make()
    steps = _Steps(layer, monkeypatch, "before the read", 200)
    reason = rf"table t\d+-{layer.name}: in each of 100 attempts .* moved rows .* in the thread that trains, or between"
    with pytest.raises(tf.errors.FailedPreconditionError, match=reason):
        LOOKUPS[lookup](layer)
    assert steps.remaining == 100
    steps.remaining = 0
    assert wrong(LOOKUPS[lookup](layer)) == 0


def _fit(layer: Layer, ahead: bool, batches: int) -> None:
    ids = np.random.default_rng(0).integers(0, ROWS, (batches * BATCH, PER_SAMPLE))
    inputs = keras.Input((PER_SAMPLE,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    dataset = tf.data.Dataset.from_tensor_slices((ids, np.zeros((len(ids), 1), np.float32))).batch(BATCH)
    model.fit(tsps.lookahead(dataset, model, batches=2) if ahead else dataset, verbose=0)


@pytest.mark.parametrize("ahead", [False, True], ids=["", "lookahead"])
@pytest.mark.daily_cases(1)
def test_a_thread_that_looks_up_beside_fit_finds_its_rows(ahead: bool) -> None:
    layer = make()
    graph_lookup = tf.function(lambda ids: layer(ids))
    ended = threading.Event()
    counts: list[int] = []
    errors: list[Exception] = []

    def look_up() -> None:
        try:
            while not ended.is_set():
                counts.extend([wrong(layer(IDS).numpy()), wrong(graph_lookup(IDS).numpy())])
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=look_up)
    thread.start()
    try:
        _fit(layer, ahead, 1000)
    finally:
        ended.set()
        thread.join()
    assert not errors
    assert len(counts) > 20
    assert sum(counts) == 0
    assert layer.cache_statistics()["evicted"] > 1000


@pytest.mark.parametrize("way", ["graph", "eager", "lookahead", "frozen"])
def test_lookups_of_the_thread_that_trains_are_not_repeated(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make(trainable=way != "frozen")
    check, checks = _ops.cache_check_taken, []

    def cache_check_taken(*arguments: Any) -> tf.Tensor:
        checks.append(0)
        next_attempt = check(*arguments)
        equal = tf.debugging.assert_equal(next_attempt, tf.constant(0, tf.int64))
        with tf.control_dependencies([] if equal is None else [equal]):
            return tf.identity(next_attempt)

    monkeypatch.setattr(_ops, "cache_check_taken", cache_check_taken)
    if way in ("lookahead", "frozen"):
        _fit(layer, way == "lookahead", 200)
    else:
        step = step_of(layer, way == "graph")
        for number in range(300 if way == "graph" else 20):
            step(tf.range(SLOTS, dtype=tf.int64) + number % 2 * SLOTS)
    assert checks
    assert (layer.cache_statistics()["evicted"] > 300) == (way != "frozen")
