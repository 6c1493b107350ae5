"""A `fit` that ends with an exception does not change the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from models import DIM, keras

import tf_sparse_ps as tsps

IDS, TARGETS = np.arange(64).reshape(32, 2) % 20, np.ones((32, 1), np.float32)


def compiled() -> Any:
    model = keras.Sequential(
        [keras.Input([2], dtype="int64"), tsps.Embedding(100, DIM), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def batches(_: int = 0) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(8)


def interrupting(at: str) -> Any:
    """Returns a callback that raises KeyboardInterrupt in its method `at`."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    return type("Interrupting", (keras.callbacks.Callback,), {at: interrupt})()


def steps_of(model: Any, train: Callable[[], Any]) -> int:
    """Returns the number of steps that a function makes."""
    before = int(model.optimizer.iterations)
    train()
    return int(model.optimizer.iterations) - before


@pytest.mark.parametrize("at", ["on_train_begin", "on_epoch_begin", "on_train_batch_end", "on_epoch_end"])
def test_a_restored_fit_that_is_interrupted_does_not_shorten_the_next_one(at: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    saved_model, checkpoint = compiled(), tsps.callbacks.Checkpoint(directory, every_steps=4)
    saved_model.fit(checkpoint.dataset(batches), epochs=3, callbacks=[checkpoint], verbose=0)
    resumed_model, checkpoint = compiled(), tsps.callbacks.Checkpoint(directory, every_steps=4)
    with pytest.raises(KeyboardInterrupt):
        resumed_model.fit(checkpoint.dataset(batches), epochs=6, callbacks=[checkpoint, interrupting(at)], verbose=0)
    assert steps_of(resumed_model, lambda: resumed_model.fit(batches(), epochs=2, verbose=0)) == 8


def test_the_interrupted_fit_can_be_called_again(tmp_path: Path) -> None:
    model, checkpoint = compiled(), tsps.callbacks.Checkpoint(tmp_path / "checkpoints", every_steps=4)
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            checkpoint.dataset(batches),
            epochs=2,
            callbacks=[interrupting("on_train_batch_end"), checkpoint],
            verbose=0,
        )
    model.fit(checkpoint.dataset(batches), epochs=2, callbacks=[checkpoint], verbose=0)
    assert int(model.optimizer.iterations) == 8


def without_a_batch_left() -> tsps.callbacks.EqualSteps:
    """Returns the callback of a rank that has two batches, while the other rank has four."""
    equal = tsps.callbacks.EqualSteps(batches())
    equal.own_steps = 2
    return equal


@pytest.mark.parametrize("at", ["on_epoch_begin", "on_train_batch_end", "on_epoch_end"])
def test_a_rank_has_its_weight_again_after_an_exception(at: str) -> None:
    model, equal = compiled(), without_a_batch_left()
    with pytest.raises(KeyboardInterrupt):
        model.fit(equal.dataset, callbacks=[equal, interrupting(at)], verbose=0)
    for _ in range(3):
        before = model.get_weights()
        model.fit(batches(), verbose=0)
        moved = [
            np.abs(weight - weight_before).max()
            for weight, weight_before in zip(model.get_weights(), before, strict=True)
        ]
        assert min(moved) > 0, "the rank must train"


def test_the_other_steps_of_the_rank_have_weight_0() -> None:
    """The control of the test above: without an end of `fit`, the weight stays 0."""
    model, equal = compiled(), without_a_batch_left()
    weights: list[list[Any]] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: weights.append(model.get_weights()))
    model.fit(equal.dataset, callbacks=[equal, note], verbose=0)
    assert [np.array_equal(weights[i][0], weights[i - 1][0]) for i in (1, 2, 3)] == [False, True, True]


def test_validation_after_an_exception_has_its_own_data() -> None:
    model = compiled()
    far = tf.data.Dataset.from_tensor_slices((IDS, TARGETS + 100)).batch(8)
    with pytest.raises(KeyboardInterrupt):
        model.fit(batches(), validation_data=far, callbacks=[interrupting("on_epoch_end")], verbose=0)
    val_loss = model.fit(batches(), validation_data=batches(), verbose=0).history["val_loss"][0]
    assert val_loss < 100, "Keras must not validate with the data of the previous fit"


def test_a_fit_within_a_callback_of_another_one_keeps_its_own_state(tmp_path: Path) -> None:
    outer, equal, inner = compiled(), without_a_batch_left(), compiled()
    weights: list[Any] = []

    class Nested(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                with pytest.raises(KeyboardInterrupt):
                    inner.fit(batches(), callbacks=[interrupting("on_train_batch_end")], verbose=0)
            weights.append(outer.get_weights()[0])

    outer.fit(equal.dataset, callbacks=[equal, Nested()], verbose=0)
    assert np.array_equal(weights[3], weights[1]), "the inner fit must not end the state of the outer one"


def test_models_of_plain_keras_are_left_alone() -> None:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(KeyboardInterrupt):
        model.fit(IDS.astype(np.float32), TARGETS, callbacks=[interrupting("on_epoch_end")], verbose=0)
    assert len(model.fit(IDS.astype(np.float32), TARGETS, epochs=2, verbose=0).history["loss"]) == 2
