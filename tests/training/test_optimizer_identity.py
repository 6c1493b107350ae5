"""A table's slots belong to the optimizer that trained it last. Another one starts with new slots, or is refused."""

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
    wrapped_model = model(layer)
    wrapped_model.compile(tsps.DistributedOptimizer(optimizer(name, 0.05)), "mse")
    return wrapped_model


def step(trained_model: Any) -> None:
    trained_model.train_on_batch(IDS[:4], TARGETS[:4])


def first_slot(trained_model: Any) -> np.ndarray:
    """Returns the first slot of a model's table in the order of the keys: Adam's moments or Adagrad's accumulators."""
    block = trained_model.layers[1].bindings[0].reader().scan().read()
    return block.slots[0][np.argsort(block.keys)]


@pytest.mark.daily_cases(1)
@pytest.mark.parametrize("name", ["Adam", "Adagrad"])
def test_a_model_that_is_compiled_again_trains_as_keras_does(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    tsps_model, keras_model = twins(lambda: optimizer(name, 0.05))
    fit(tsps_model, 10), fit(keras_model, 10)
    assert "another optimizer" not in capfd.readouterr().err
    tsps_model.compile(tsps.DistributedOptimizer(optimizer(name, 0.05)), "mse")
    keras_model.compile(optimizer(name, 0.05), "mse")
    for epochs in (1, 3):
        fit(tsps_model, epochs), fit(keras_model, epochs)
        assert difference(tsps_model, keras_model) < 1e-4
    notices = [line for line in capfd.readouterr().err.splitlines() if "another optimizer" in line]
    assert len(notices) == 1
    assert "rows are kept, and the slots are reset" in notices[0]


def test_a_model_that_is_compiled_again_with_its_optimizer_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    tsps_model, keras_model = twins(lambda: optimizer("Adam", 0.05))
    fit(tsps_model), fit(keras_model)
    tsps_model.compile(tsps.DistributedOptimizer(tsps_model.optimizer.inner_optimizer), "mse")
    keras_model.compile(keras_model.optimizer, "mse")
    fit(tsps_model), fit(keras_model)
    assert difference(tsps_model, keras_model) < 1e-4
    assert "another optimizer" not in capfd.readouterr().err


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_the_earlier_optimizer_is_refused(eagerly: bool) -> None:
    layer = tsps.Embedding(ROWS, DIM)
    first_model, second_model = compiled(layer), compiled(layer)
    first_model.run_eagerly = second_model.run_eagerly = eagerly
    step(first_model), step(second_model), step(second_model)
    before = [*layer.get_weights(), first_slot(second_model), *first_model.get_weights()]
    with pytest.raises(tf.errors.FailedPreconditionError, match="another optimizer has trained it since"):
        step(first_model)
    for array, expected in zip(
        before, [*layer.get_weights(), first_slot(second_model), *first_model.get_weights()], strict=True
    ):
        np.testing.assert_array_equal(array, expected)
    step(second_model)
    # Wrapped again, it still is the earlier optimizer. A new optimizer may start.
    first_model.compile(tsps.DistributedOptimizer(first_model.optimizer.inner_optimizer), "mse", run_eagerly=eagerly)
    with pytest.raises(ValueError, match="was trained by this optimizer, and by another one since"):
        step(first_model)
    first_model.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.05)), "mse", run_eagerly=eagerly)
    step(first_model)


def test_optimizers_without_slots_may_take_turns() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    first, second = compiled(layer, "SGD"), compiled(layer, "SGD")
    for trained_model in (first, second, first, second):
        before = layer.get_weights()[0]
        step(trained_model)
        assert (layer.get_weights()[0] != before).any()


def test_a_loaded_model_goes_on_with_its_slots(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved_model = compiled(tsps.Embedding(ROWS, DIM))
    fit(saved_model)
    saved_model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(first_slot(loaded), first_slot(saved_model))
    fit(saved_model, 1), fit(loaded, 1)
    np.testing.assert_allclose(first_slot(loaded), first_slot(saved_model), rtol=1e-4, atol=1e-6)
    assert "are reset" not in capfd.readouterr().err


def test_weights_that_are_loaded_into_a_newly_compiled_model_have_new_slots(tmp_path: Path) -> None:
    saved_model = compiled(tsps.Embedding(ROWS, DIM))
    fit(saved_model)
    path = tmp_path / ("model.weights.h5" if KERAS_3 else "weights")
    saved_model.save_weights(path)
    loaded_model = compiled(tsps.Embedding(ROWS, DIM))
    loaded_model.load_weights(path)
    if int(loaded_model.optimizer.iterations) > 0:
        pytest.skip("this Keras saves the optimizer's variables with the weights")
    expected = compiled(tsps.Embedding(ROWS, DIM))
    expected.set_weights(saved_model.get_weights())
    step(loaded_model), step(expected)
    np.testing.assert_allclose(first_slot(loaded_model), first_slot(expected), rtol=1e-5, atol=1e-7)


def test_slots_that_are_loaded_beside_an_optimizer_are_gone_on_with() -> None:
    source, target = compiled(tsps.Embedding(ROWS, DIM)), compiled(tsps.Embedding(ROWS, DIM))
    fit(source), fit(target)
    target.layers[1].load_own_variables(_own_variables(source.layers[1]))
    np.testing.assert_array_equal(first_slot(target), first_slot(source))
    step(target)
    # For an optimizer that starts afterwards, these slots belong to another one, even if that one never used them.
    target.layers[1].load_own_variables(_own_variables(source.layers[1]))
    target.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.05)), "mse")
    step(target)
    m, v = target.layers[1].bindings[0].reader().scan().read().slots
    np.testing.assert_allclose(v, 0.001 * (m / 0.1) ** 2, rtol=1e-3, atol=1e-12)  # after one gradient


def _own_variables(layer: Any) -> dict[str, np.ndarray]:
    store: dict[str, np.ndarray] = {}
    layer.save_own_variables(store)
    return store


def test_a_checkpoint_of_one_of_two_optimizers_is_refused(tmp_path: Path) -> None:
    first, second = tsps.Embedding(ROWS, DIM), tsps.Embedding(ROWS, DIM)
    ids = keras.Input((3,), dtype="int64")
    joint_model = keras.Model(ids, [first(ids), second(ids)])
    optimizers = [tsps.DistributedOptimizer(optimizer("Adam", 0.05)) for _ in range(2)]
    checkpointer = tsps.Checkpointer(tmp_path / "ck", joint_model, optimizers[0])
    checkpointer.restore()
    for layer, own_optimizer in zip((first, second), optimizers, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant(IDS[:4])))
        own_optimizer.apply_gradients(
            zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables, strict=True)
        )
    with pytest.raises(StateError, match=f"tables .*{second.name}.* trained by another optimizer"):
        checkpointer.save()
