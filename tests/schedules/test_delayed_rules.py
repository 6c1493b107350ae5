"""Local steps and corrections, compared with Keras's optimizers that get the same global gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.schedules import delayed_rules

keras = tf.keras
SHAPES, STEPS, RATE = ((3, 2), (4,)), 12, 0.1
N = 10

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(RATE),
    "momentum": lambda: keras.optimizers.SGD(RATE, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(RATE, momentum=0.8, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(RATE),
    "adam": lambda: keras.optimizers.Adam(RATE),
}


def first_weights() -> list[tf.Variable]:
    random = np.random.default_rng(0)
    return [tf.Variable(random.normal(size=shape).astype(np.float32)) for shape in SHAPES]


def gradients(seed: int) -> np.ndarray:
    """Returns float32[STEPS, N]."""
    return np.random.default_rng(seed).normal(size=(STEPS, N)).astype(np.float32)


def flat(variables: list[Any]) -> np.ndarray:
    return np.concatenate([np.ravel(variable.numpy()) for variable in variables])


def pieces(gradient: np.ndarray) -> list[tf.Tensor]:
    """Returns the part of each variable."""
    return [tf.reshape(part, shape) for part, shape in zip(tf.split(gradient, [6, 4]), SHAPES, strict=True)]


def made(kind: str) -> tuple[Any, delayed_rules.Rule]:
    """Returns a Keras optimizer, and the rule with its slots."""
    variables, optimizer = first_weights(), OPTIMIZERS[kind]()
    _keras.build_optimizer(optimizer, variables)
    return optimizer, delayed_rules.kind_of(optimizer)(optimizer, variables)


@pytest.mark.parametrize("staleness", [1, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_corrected_steps_are_keras_steps_with_the_global_gradients(kind: str, staleness: int) -> None:
    local_gradients, mean = gradients(1), gradients(2)
    _, rule = made(kind)
    rate, shares, n_global = tf.constant(RATE), [], 0
    for i in range(STEPS + staleness):
        if i < STEPS:
            shares.append(rule.local(pieces(local_gradients[i]), rate, tf.constant(float(n_global))))
        k = i - staleness
        if k >= 0:
            steps_since = min(i, STEPS - 1) - k  # no steps are made at the end
            counts = tf.constant(float(steps_since)), tf.constant(float(n_global))
            rule.correct(
                delayed_rules.Correction(pieces(local_gradients[k]), shares[k], rate, pieces(mean[k]), rate, *counts)
            )
            n_global += 1
    variables, optimizer = first_weights(), OPTIMIZERS[kind]()
    _keras.build_optimizer(optimizer, variables)
    for gradient in mean:
        optimizer.apply_gradients(zip(pieces(gradient), variables, strict=True))
    tolerance = 2e-5 if kind == "adam" else 4e-6
    np.testing.assert_allclose(flat(rule.variables), flat(variables), atol=tolerance * np.abs(flat(variables)).max())
    if kind != "sgd":
        keras_slots = [_keras.slots_of(optimizer, variable) for variable in variables]
        for k in range(len(keras_slots[0])):
            rule_slots = flat([slots[k] for slots in rule.slots])
            np.testing.assert_allclose(rule_slots, flat([slots[k] for slots in keras_slots]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_local_step_is_keras_step_of_that_gradient(kind: str) -> None:
    local_gradient = gradients(3)[0]
    _, rule = made(kind)
    before = flat(rule.variables)
    share = rule.local(pieces(local_gradient), tf.constant(RATE), tf.constant(0.0))
    variables, optimizer = first_weights(), OPTIMIZERS[kind]()
    optimizer.apply_gradients(zip(pieces(local_gradient), variables, strict=True))
    np.testing.assert_allclose(flat(rule.variables), flat(variables), atol=1e-6)
    if rule.keeps_steps:
        np.testing.assert_allclose(before - flat(rule.variables), flat(share), atol=1e-6)


def test_corrections_in_second_moments_would_inflate_them() -> None:
    """Why Adagrad's sum takes only global gradients: with two independent ranks, roots would be sqrt(3) too large."""
    random = np.random.default_rng(4)
    rank_gradients = random.normal(size=(2, 200_000)).astype(np.float32)
    mean = rank_gradients.mean(axis=0)
    fed = np.square(rank_gradients[0]) + np.square(mean - rank_gradients[0])
    assert np.sqrt(fed.mean() / np.square(mean).mean()) == pytest.approx(np.sqrt(3), rel=0.01)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: keras.optimizers.RMSprop(), "RMSprop"),
        (lambda: keras.optimizers.Adam(amsgrad=True), "amsgrad"),
        (lambda: keras.optimizers.SGD(momentum=1.0), "momentum below 1"),
    ],
)
def test_other_optimizers_are_refused(optimizer: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        delayed_rules.kind_of(optimizer())
