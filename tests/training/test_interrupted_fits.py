"""A `fit` that ends with an exception leaves nothing behind that changes the next one."""

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
    one = keras.Sequential(
        [keras.Input([2], dtype="int64"), tsps.Embedding(100, DIM), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    one.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return one


def batches(_: int = 0) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(8)


def interrupting(at: str) -> Any:
    """A callback that ends `fit` there, as Ctrl-C does."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    return type("Interrupting", (keras.callbacks.Callback,), {at: interrupt})()


def steps_of(one: Any, train: Callable[[], Any]) -> int:
    """How many steps something makes."""
    before = int(one.optimizer.iterations)
    train()
    return int(one.optimizer.iterations) - before


@pytest.mark.parametrize("at", ["on_train_begin", "on_epoch_begin", "on_train_batch_end", "on_epoch_end"])
def test_a_restored_fit_that_is_interrupted_does_not_shorten_the_next_one(at: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    first, checkpoint = compiled(), tsps.callbacks.Checkpoint(directory, every_steps=4)
    first.fit(checkpoint.dataset(batches), epochs=3, callbacks=[checkpoint], verbose=0)
    one, checkpoint = compiled(), tsps.callbacks.Checkpoint(directory, every_steps=4)
    with pytest.raises(KeyboardInterrupt):
        one.fit(checkpoint.dataset(batches), epochs=6, callbacks=[checkpoint, interrupting(at)], verbose=0)
    assert steps_of(one, lambda: one.fit(batches(), epochs=2, verbose=0)) == 8


def test_the_interrupted_fit_can_be_called_again(tmp_path: Path) -> None:
    one, checkpoint = compiled(), tsps.callbacks.Checkpoint(tmp_path / "checkpoints", every_steps=4)
    with pytest.raises(KeyboardInterrupt):
        one.fit(
            checkpoint.dataset(batches),
            epochs=2,
            callbacks=[interrupting("on_train_batch_end"), checkpoint],
            verbose=0,
        )
    one.fit(checkpoint.dataset(batches), epochs=2, callbacks=[checkpoint], verbose=0)
    assert int(one.optimizer.iterations) == 8


def without_a_batch_left() -> tsps.callbacks.EqualSteps:
    """Of a rank that has two batches, beside another one that has four."""
    equal = tsps.callbacks.EqualSteps(batches())
    equal.own_steps = 2
    return equal


@pytest.mark.parametrize("at", ["on_epoch_begin", "on_train_batch_end", "on_epoch_end"])
def test_a_rank_has_its_weight_again_after_an_exception(at: str) -> None:
    one, equal = compiled(), without_a_batch_left()
    with pytest.raises(KeyboardInterrupt):
        one.fit(equal.dataset, callbacks=[equal, interrupting(at)], verbose=0)
    for _ in range(3):
        before = one.get_weights()
        one.fit(batches(), verbose=0)
        moved = [np.abs(now - then).max() for now, then in zip(one.get_weights(), before, strict=True)]
        assert min(moved) > 0, "the rank trained nothing"


def test_the_other_steps_of_the_rank_have_weight_0() -> None:
    """The control of the test above: without an end the weight is 0."""
    one, equal = compiled(), without_a_batch_left()
    weights: list[list[Any]] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: weights.append(one.get_weights()))
    one.fit(equal.dataset, callbacks=[equal, note], verbose=0)
    assert [np.array_equal(weights[i][0], weights[i - 1][0]) for i in (1, 2, 3)] == [False, True, True]


def test_validation_after_an_exception_has_its_own_data() -> None:
    one = compiled()
    far = tf.data.Dataset.from_tensor_slices((IDS, TARGETS + 100)).batch(8)
    with pytest.raises(KeyboardInterrupt):
        one.fit(batches(), validation_data=far, callbacks=[interrupting("on_epoch_end")], verbose=0)
    found = one.fit(batches(), validation_data=batches(), verbose=0).history["val_loss"][0]
    assert found < 100, "Keras validated with the data of the fit before"


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
    assert np.array_equal(weights[3], weights[1]), "the inner fit ended the state of the outer one"


def test_models_of_plain_keras_are_left_alone() -> None:
    one = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    one.compile("sgd", "mse")
    with pytest.raises(KeyboardInterrupt):
        one.fit(IDS.astype(np.float32), TARGETS, callbacks=[interrupting("on_epoch_end")], verbose=0)
    assert len(one.fit(IDS.astype(np.float32), TARGETS, epochs=2, verbose=0).history["loss"]) == 2
