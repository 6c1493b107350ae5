"""Several optimizers train tables of one process: one after the other, or a refused step changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from models import DIM, IDS, ROWS, TARGETS, model, optimizer

import tf_sparse_ps as tsps
from tf_sparse_ps.reduction import sparse_step

pytestmark = pytest.mark.quick


def trained(layer: Any, name: str, **options: Any) -> Any:
    """Returns a compiled model around a layer."""
    wrapped_model = model(layer)
    wrapped_model.compile(tsps.DistributedOptimizer(optimizer(name, 0.1), **options), "mse")
    return wrapped_model


def step(trained_model: Any) -> None:
    """Makes one step of `train_on_batch`, in a graph."""
    trained_model.train_on_batch(IDS[:4], TARGETS[:4])


def state(trained_model: Any) -> list[np.ndarray]:
    """Returns weights, rows and the optimizer's variables."""
    variables = trained_model.optimizer.variables
    return [*trained_model.get_weights(), *(np.asarray(variable) for variable in variables)]


def assert_same(before: list[np.ndarray], after: list[np.ndarray]) -> None:
    for array, expected in zip(before, after, strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_step_that_another_thread_has_overtaken_is_refused_whole(
    eagerly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = trained(tsps.Embedding(ROWS, DIM), "SGD"), trained(tsps.Embedding(ROWS, DIM), "Adagrad")
    slow.run_eagerly = eagerly
    step(fast)
    overtake = False
    number = sparse_step.SparseStep.number

    def other_thread() -> None:
        if overtake:
            thread = threading.Thread(target=step, args=[fast])
            thread.start()
            thread.join()

    def overtaken(self: Any) -> tf.Tensor:
        # The other model makes its step once this step's number is known.
        step_number = number(self)
        with tf.control_dependencies([step_number]):
            done = tf.py_function(other_thread, [], [])
        with tf.control_dependencies([] if eagerly else [done]):
            return tf.identity(step_number)

    # This leaves the other model's steps alone, because they are traced already.
    monkeypatch.setattr(sparse_step.SparseStep, "number", overtaken)
    step(slow)
    before, n_steps = state(slow), int(fast.optimizer.iterations)
    overtake = True
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"another optimizer made a step.*one thread.*Nothing"):
        step(slow)
    overtake = False
    assert_same(before, state(slow))
    assert int(fast.optimizer.iterations) == n_steps + 1
    step(slow)
    assert int(slow.optimizer.iterations) == 2


def test_models_that_share_a_layer_train_it_by_one_rule() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    models = [trained(layer, "SGD"), trained(layer, "Adam", sparse_optimizer="sgd")]
    for trained_model in [*models, *models]:
        before = layer.get_weights()[0]
        step(trained_model)
        assert (layer.get_weights()[0] != before).any()


@pytest.mark.parametrize(
    ("kinds", "error", "words"),
    [
        (("Adagrad", "Adam"), tf.errors.FailedPreconditionError, "another optimizer has trained it since"),
        (
            ("Adam", "SGD"),
            tf.errors.InvalidArgumentError,
            "optimizer sgd takes 1 hyperparameters. Received: 5, of another rule.*sparse_optimizer=",
        ),
    ],
    ids=["adagrad", "adam"],
)
def test_of_models_that_share_a_layer_and_differ_in_its_rule_the_former_is_refused_whole(
    kinds: tuple[str, str], error: type[Exception], words: str
) -> None:
    layer = tsps.Embedding(ROWS, DIM)
    first_model, second_model = (trained(layer, kind) for kind in kinds)
    step(first_model)
    with pytest.warns(UserWarning, match="its slots are reset"):
        step(second_model)
    before = state(first_model)

    def refused(kind: type[Exception], words: str, action: Callable[[], None]) -> None:
        with pytest.raises(kind, match=words):
            action()
        assert_same(before, state(first_model))

    refused(error, words, lambda: step(first_model))
    step(second_model)
    before = state(first_model)
    first_model.compile(first_model.optimizer, "mse", run_eagerly=True)
    refused(ValueError, "is bound to .* now.*has trained it by.*sparse_optimizer=", lambda: step(first_model))
    first_model.compile(tsps.DistributedOptimizer(optimizer(kinds[0], 0.1)), "mse")
    with pytest.warns(UserWarning, match="its slots are reset"):
        step(first_model)


def test_rules_that_differ_in_their_first_slots_are_refused_where_a_step_is_traced() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    first_model, second_model = (
        trained(layer, "SGD", sparse_optimizer=tsps.optimizers.Adagrad(initial_accumulator_value=start))
        for start in (0.1, 0.2)
    )
    step(first_model)
    with pytest.warns(UserWarning, match="its slots are reset"):
        step(second_model)
    first_model.train_function = None
    with pytest.raises(ValueError, match=r"is bound to Adagrad.*0\.2.* now"):
        step(first_model)
