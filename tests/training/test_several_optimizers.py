"""Several optimizers train tables of one process: one after the other, or refused, with nothing half applied."""

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
    """A compiled model around a layer."""
    one = model(layer)
    one.compile(tsps.DistributedOptimizer(optimizer(name, 0.1), **options), "mse")
    return one


def step(one: Any) -> None:
    """One step of `fit`, in a graph."""
    one.train_on_batch(IDS[:4], TARGETS[:4])


def state(one: Any) -> list[np.ndarray]:
    """Weights, rows and the optimizer's variables."""
    variables = one.optimizer.variables
    return [*one.get_weights(), *(np.asarray(each) for each in variables)]


def assert_same(before: list[np.ndarray], after: list[np.ndarray]) -> None:
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


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
        # The other model's step is made when this one's number is known.
        found = number(self)
        with tf.control_dependencies([found]):
            done = tf.py_function(other_thread, [], [])
        with tf.control_dependencies([] if eagerly else [done]):
            return tf.identity(found)

    # Not the other model's own steps, which are traced already.
    monkeypatch.setattr(sparse_step.SparseStep, "number", overtaken)
    step(slow)
    before, made = state(slow), int(fast.optimizer.iterations)
    overtake = True
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"another optimizer made a step.*one thread.*Nothing"):
        step(slow)
    overtake = False
    assert_same(before, state(slow))
    assert int(fast.optimizer.iterations) == made + 1
    step(slow)
    assert int(slow.optimizer.iterations) == 2


def test_models_that_share_a_layer_train_it_by_one_rule() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    models = [trained(layer, "SGD"), trained(layer, "Adam", sparse_optimizer="sgd")]
    for one in [*models, *models]:
        before = layer.get_weights()[0]
        step(one)
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
    first, second = (trained(layer, kind) for kind in kinds)
    step(first)
    with pytest.warns(UserWarning, match="its slots are reset"):
        step(second)
    before = state(first)

    def refused(kind: type[Exception], words: str, action: Callable[[], None]) -> None:
        with pytest.raises(kind, match=words):
            action()
        assert_same(before, state(first))

    refused(error, words, lambda: step(first))
    step(second)
    before = state(first)
    first.compile(first.optimizer, "mse", run_eagerly=True)
    refused(ValueError, "was bound to .* since this optimizer.*sparse_optimizer=", lambda: step(first))
    first.compile(tsps.DistributedOptimizer(optimizer(kinds[0], 0.1)), "mse")
    with pytest.warns(UserWarning, match="its slots are reset"):
        step(first)


def test_rules_that_differ_in_their_first_slots_are_refused_where_a_step_is_traced() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    first, second = (
        trained(layer, "SGD", sparse_optimizer=tsps.optimizers.Adagrad(initial_accumulator_value=start))
        for start in (0.1, 0.2)
    )
    step(first)
    with pytest.warns(UserWarning, match="its slots are reset"):
        step(second)
    first.train_function = None
    with pytest.raises(ValueError, match=r"was bound to Adagrad.*0\.2.*since"):
        step(first)
