"""A step succeeds on the host and fails on the device: the job must not continue with the lost rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops
from tf_sparse_ps.cache import device_store
from tf_sparse_ps.table import newer_rows

ROWS, DIM = 60, 4
CACHE = tsps.DeviceCache(rows=40, policy="lru")
LOST = r"step \d+ was made on the host, and then failed on the device .*Restore a checkpoint"
IDS = np.random.default_rng(0).integers(0, ROWS, size=(12, 6))
SAVED, FAILS = 4, 7  # a checkpoint is saved before step 4, and step 7 fails


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> tf.Variable:
    """Writing to the device fails while this variable is not 0."""
    fails = tf.Variable(0, trainable=False)
    put = device_store._put

    def may_fail(plane: tf.Variable, slots: tf.Tensor, rows: tf.Tensor) -> Any:
        check = tf.debugging.Assert(tf.equal(fails, 0), ["the device has no memory"])
        with tf.control_dependencies([] if check is None else [check]):
            return put(plane, tf.identity(slots), rows)

    monkeypatch.setattr(device_store, "_put", may_fail)
    return fails


def make(cache: tsps.DeviceCache | None) -> tuple[tsps.Embedding, Any]:
    """Returns a layer and a model around it."""
    keras.utils.set_random_seed(3)
    layer = tsps.Embedding(ROWS, DIM, keras.initializers.Constant(0.5), cache=cache)
    return layer, keras.Sequential([keras.Input((6,), dtype="int64"), layer])


def steps_of(layer: tsps.Embedding, graph: bool = True, optimizer: Any = None) -> Callable[[Any], None]:
    """Returns a step that trains the layer with an optimizer of its own."""
    if optimizer is None:
        optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))

    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids[tf.newaxis])))
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    return tf.function(step) if graph else step


def fail(layer: tsps.Embedding, step: Callable[[Any], None], failing: tf.Variable, checkpointer: Any = None) -> None:
    for number, ids in enumerate(IDS[: FAILS + 1]):
        if number == SAVED and checkpointer is not None:
            checkpointer.save()
        failing.assign(int(number == FAILS))
        if number < FAILS:
            step(tf.constant(ids))
            continue
        with pytest.raises(tf.errors.InvalidArgumentError, match="the device has no memory"):
            step(tf.constant(ids))
    failing.assign(0)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.daily_cases(1)
def test_after_a_step_that_failed_on_the_device_nothing_uses_its_rows(
    failing: tf.Variable, graph: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, model = make(CACHE)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))
    step = steps_of(layer, graph, optimizer)
    for ids in IDS[:3]:
        step(tf.constant(ids))
    model.save_weights(tmp_path / "three.weights.h5")
    expected = layer.get_weights()[0]
    fail(layer, step, failing)
    with pytest.raises(tf.errors.FailedPreconditionError, match=LOST):
        step(tf.constant(IDS[FAILS + 1]))
    with pytest.raises(tf.errors.FailedPreconditionError, match=LOST):
        layer(tf.constant(IDS[:1]))
    with pytest.raises(tsps.errors.StateError, match=LOST):
        layer.get_weights()
    with pytest.raises(tsps.errors.StateError, match=LOST):
        model.save_weights(tmp_path / "none.weights.h5")
    with pytest.raises(tsps.errors.StateError, match=LOST):  # slots would keep their old values
        layer.set_weights([expected])
    assert newer_rows.dirty_since(layer.bindings[0].path) is not None
    model.load_weights(tmp_path / "three.weights.h5")
    assert newer_rows.dirty_since(layer.bindings[0].path) is None
    np.testing.assert_array_equal(layer.get_weights()[0], expected)

    reference, _ = make(None)
    step, its_step = steps_of(layer, graph, optimizer), steps_of(reference, graph)
    for ids in IDS[:3]:
        its_step(tf.constant(ids))
    for ids in IDS[3:]:
        step(tf.constant(ids))
        its_step(tf.constant(ids))
    np.testing.assert_allclose(layer.get_weights()[0], reference.get_weights()[0], atol=1e-6)


def test_a_checkpoint_restores_rows_that_are_lost(failing: tf.Variable, tmp_path: Path) -> None:
    layer, model = make(CACHE)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))
    reference, _ = make(None)
    step, its_step = steps_of(layer, optimizer=optimizer), steps_of(reference)
    checkpointer = tsps.Checkpointer(tmp_path / "checkpoints", model, optimizer)
    checkpointer.restore()
    fail(layer, step, failing, checkpointer)
    checkpointer.wait()  # a background thread writes it
    for ids in IDS:
        its_step(tf.constant(ids))
    expected = reference.get_weights()[0]
    again = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))
    assert tsps.Checkpointer(tmp_path / "checkpoints", model, again).restore() is not None
    step = steps_of(layer, optimizer=again)
    for ids in IDS[SAVED:]:
        step(tf.constant(ids))
    np.testing.assert_allclose(layer.get_weights()[0], expected, atol=1e-6)


@pytest.mark.nightly
def test_unless_it_is_told_that_rows_have_moved_when_they_have_not(failing: tf.Variable) -> None:
    """The control: training on the lost rows gives other results."""
    layer, _ = make(CACHE)
    reference, _ = make(None)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))
    fail(layer, steps_of(layer, optimizer=optimizer), failing)
    with pytest.raises(Exception, match=LOST):  # a new optimizer, as after compile()
        steps_of(layer)(tf.constant(IDS[FAILS + 1]))
    for plan in range(100):  # one of these is the plan of the step
        _ops.cache_moved(layer.bindings[0].cache.stores[0].number, tf.constant(plan, tf.int64))
    step, its_step = steps_of(layer, optimizer=optimizer), steps_of(reference)
    for ids in IDS[FAILS + 1 :]:
        step(tf.constant(ids))
    for ids in IDS:
        its_step(tf.constant(ids))
    assert not np.allclose(layer.get_weights()[0], reference.get_weights()[0], atol=1e-3)


def test_a_step_of_another_thread_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _ = make(CACHE)
    step = steps_of(layer, graph=False)
    layer.build(None)
    store = layer.bindings[0].cache
    step(tf.constant(IDS[0]))
    moved: list[tuple[tf.Tensor, tf.Tensor]] = []
    monkeypatch.setattr(_ops, "cache_moved", lambda cache, plan: moved.append((cache, plan)))
    step(tf.constant(IDS[1]))
    monkeypatch.undo()
    assert store.failed
    thread = threading.Timer(1.0, lambda: _ops.cache_moved(*moved[0]))
    thread.start()
    rows = layer.get_weights()[0]
    assert not store.failed
    thread.join()
    np.testing.assert_array_equal(layer.get_weights()[0], rows)
