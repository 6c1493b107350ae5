"""A table's slots are those of the optimizer that trained it last; another one begins with new slots, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from models import DIM, IDS, KERAS_3, ROWS, TARGETS, difference, fit, keras, model, optimizer, twins

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import StateError

pytestmark = pytest.mark.keras2_smoke


def compiled(layer: Any, name: str = "Adam") -> Any:
    one = model(layer)
    one.compile(tsps.DistributedOptimizer(optimizer(name, 0.05)), "mse")
    return one


def step(one: Any) -> None:
    one.train_on_batch(IDS[:4], TARGETS[:4])


def first_slot(one: Any) -> np.ndarray:
    """Of a model's table, by key: the moments of Adam, the accumulators of Adagrad."""
    found = one.layers[1].bindings[0].reader().scan().read()
    return found.slots[0][np.argsort(found.keys)]


@pytest.mark.daily_cases(1)
@pytest.mark.parametrize("name", ["Adam", "Adagrad"])
def test_a_model_that_is_compiled_again_trains_as_keras_does(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = twins(lambda: optimizer(name, 0.05))
    fit(ours, 10), fit(theirs, 10)
    assert "another optimizer" not in capfd.readouterr().err
    ours.compile(tsps.DistributedOptimizer(optimizer(name, 0.05)), "mse")
    theirs.compile(optimizer(name, 0.05), "mse")
    for epochs in (1, 3):
        fit(ours, epochs), fit(theirs, epochs)
        assert difference(ours, theirs) < 1e-4
    notices = [line for line in capfd.readouterr().err.splitlines() if "another optimizer" in line]
    assert len(notices) == 1
    assert "rows are kept, and the slots are reset" in notices[0]


def test_a_model_that_is_compiled_again_with_its_optimizer_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = twins(lambda: optimizer("Adam", 0.05))
    fit(ours), fit(theirs)
    ours.compile(tsps.DistributedOptimizer(ours.optimizer.inner_optimizer), "mse")
    theirs.compile(theirs.optimizer, "mse")
    fit(ours), fit(theirs)
    assert difference(ours, theirs) < 1e-4
    assert "another optimizer" not in capfd.readouterr().err


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_the_earlier_optimizer_is_refused(eagerly: bool) -> None:
    layer = tsps.Embedding(ROWS, DIM)
    first, second = compiled(layer), compiled(layer)
    first.run_eagerly = second.run_eagerly = eagerly
    step(first), step(second), step(second)
    before = [*layer.get_weights(), first_slot(second), *first.get_weights()]
    with pytest.raises(tf.errors.FailedPreconditionError, match="another optimizer has trained it since"):
        step(first)
    for one, other in zip(before, [*layer.get_weights(), first_slot(second), *first.get_weights()], strict=True):
        np.testing.assert_array_equal(one, other)
    step(second)
    # Wrapped again it still is the earlier one; a new one may begin.
    first.compile(tsps.DistributedOptimizer(first.optimizer.inner_optimizer), "mse", run_eagerly=eagerly)
    with pytest.raises(ValueError, match="was trained by this optimizer, and by another one since"):
        step(first)
    first.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.05)), "mse", run_eagerly=eagerly)
    step(first)


def test_optimizers_without_slots_may_take_turns() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    first, second = compiled(layer, "SGD"), compiled(layer, "SGD")
    for one in (first, second, first, second):
        before = layer.get_weights()[0]
        step(one)
        assert (layer.get_weights()[0] != before).any()


def test_a_loaded_model_goes_on_with_its_slots(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = compiled(tsps.Embedding(ROWS, DIM))
    fit(one)
    one.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(first_slot(loaded), first_slot(one))
    fit(one, 1), fit(loaded, 1)
    np.testing.assert_allclose(first_slot(loaded), first_slot(one), rtol=1e-4, atol=1e-6)
    assert "are reset" not in capfd.readouterr().err


def test_weights_that_are_loaded_into_a_newly_compiled_model_have_new_slots(tmp_path: Path) -> None:
    one = compiled(tsps.Embedding(ROWS, DIM))
    fit(one)
    path = tmp_path / ("model.weights.h5" if KERAS_3 else "weights")
    one.save_weights(path)
    again = compiled(tsps.Embedding(ROWS, DIM))
    again.load_weights(path)
    if int(again.optimizer.iterations) > 0:
        pytest.skip("this Keras saves the optimizer's variables with the weights")
    expected = compiled(tsps.Embedding(ROWS, DIM))
    expected.set_weights(one.get_weights())
    step(again), step(expected)
    np.testing.assert_allclose(first_slot(again), first_slot(expected), rtol=1e-5, atol=1e-7)


def test_slots_that_are_loaded_beside_an_optimizer_are_gone_on_with() -> None:
    one, other = compiled(tsps.Embedding(ROWS, DIM)), compiled(tsps.Embedding(ROWS, DIM))
    fit(one), fit(other)
    other.layers[1].load_own_variables(_own_variables(one.layers[1]))
    np.testing.assert_array_equal(first_slot(other), first_slot(one))
    step(other)
    # For an optimizer that begins afterwards they are another one's, also if nobody has gone on with them.
    other.layers[1].load_own_variables(_own_variables(one.layers[1]))
    other.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.05)), "mse")
    step(other)
    m, v = other.layers[1].bindings[0].reader().scan().read().slots
    np.testing.assert_allclose(v, 0.001 * (m / 0.1) ** 2, rtol=1e-3, atol=1e-12)  # of one gradient


def _own_variables(layer: Any) -> dict[str, np.ndarray]:
    store: dict[str, np.ndarray] = {}
    layer.save_own_variables(store)
    return store


def test_a_checkpoint_of_one_of_two_optimizers_is_refused(tmp_path: Path) -> None:
    first, second = tsps.Embedding(ROWS, DIM), tsps.Embedding(ROWS, DIM)
    ids = keras.Input((3,), dtype="int64")
    both = keras.Model(ids, [first(ids), second(ids)])
    optimizers = [tsps.DistributedOptimizer(optimizer("Adam", 0.05)) for _ in range(2)]
    checkpointer = tsps.Checkpointer(tmp_path / "ck", both, optimizers[0])
    checkpointer.restore()
    for layer, own in zip((first, second), optimizers, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant(IDS[:4])))
        own.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables, strict=True))
    with pytest.raises(StateError, match=f"tables .*{second.name}.* trained by another optimizer"):
        checkpointer.save()
