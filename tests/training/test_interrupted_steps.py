"""If an exception interrupts a step after the tables have changed, the process can continue to train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from models import keras

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops

pytestmark = pytest.mark.keras2_smoke

X = np.array([[1, 2], [3, 4]])
Y = np.ones((2, 1), np.float32)


class FailsAt(keras.constraints.Constraint):
    """A constraint of a dense weight. It raises in its n-th call, during the update of the dense weights."""

    def __init__(self, call: int, error: type[BaseException]) -> None:
        self.call, self.error, self.calls = call, error, 0

    def __call__(self, weight: Any) -> Any:
        self.calls += 1
        if self.calls == self.call:
            raise self.error("in the update of the dense weights")
        return weight


class ChecksFlag(keras.constraints.Constraint):
    """A constraint that fails in a graph while a variable is True."""

    def __init__(self, flag: tf.Variable) -> None:
        self.flag = flag

    def __call__(self, weight: Any) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(self.flag), ["not allowed"])]):
            return tf.identity(weight)


def model(constraint: Any) -> Any:
    inputs = keras.Input((2,), dtype="int64")
    hidden = keras.layers.Flatten()(tsps.Embedding(100, 4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(1, kernel_constraint=constraint)(hidden))


def step_function(trained_model: Any, after: Callable[[], Any] = lambda: None) -> Callable[[], None]:
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((trained_model(tf.constant(X)) - Y) ** 2)
        weights = trained_model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        after()

    return step


def committed() -> int:
    this_job = tsps.job.current()
    _ops.wait_step(this_job.group_path, int(this_job.step), 30.0)  # the leader may still be writing the step
    assert int(this_job.step) == this_job.group.committed_step()
    return int(this_job.step)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ArithmeticError])
def test_an_eager_loop_goes_on_after_an_exception_in_the_dense_update(error: type[BaseException]) -> None:
    trained_model = model(FailsAt(3, error))
    step = step_function(trained_model)
    step(), step()
    before = committed()
    with pytest.raises(error):
        step()
    assert committed() == before + 1, "the tables must have the step"
    for _ in range(3):
        step()
    assert committed() == before + 4


@pytest.mark.parametrize("where", ["constraint", "beside the step"])
def test_a_function_goes_on_after_it_has_failed(where: str) -> None:
    flag = tf.Variable(False)

    def check() -> None:
        tf.debugging.Assert(tf.logical_not(flag), ["not allowed"])

    trained_model = model(ChecksFlag(flag) if where == "constraint" else None)
    step = tf.function(step_function(trained_model, check if where == "beside the step" else lambda: None))
    step()
    flag.assign(True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not allowed"):
        step()
    flag.assign(False)
    before = committed()
    for _ in range(3):
        step()
    assert committed() == before + 3


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
def test_fit_can_be_interrupted_and_called_again(eager: bool) -> None:
    class Stop(keras.callbacks.Callback):
        def __init__(self, batch: int) -> None:
            super().__init__()
            self.batch = batch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == self.batch:
                raise KeyboardInterrupt

    trained_model = model(FailsAt(2, KeyboardInterrupt) if eager else None)
    trained_model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse", run_eagerly=eager)
    options = {"batch_size": 1, "epochs": 2, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        trained_model.fit(X, Y, **options, callbacks=[] if eager else [Stop(1)])
    before = committed()
    history = trained_model.fit(X, Y, **options).history["loss"]
    assert len(history) == 2
    assert committed() == before + 4
