"""Row optimizers: matching, checks, configurations, hyperparameters."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from models import KERAS_3, keras, optimizer

from tf_sparse_ps import optimizers

HOMES = [""] if KERAS_3 else ["", "legacy."]


@pytest.mark.parametrize("home", HOMES)
def test_match(home: str) -> None:
    assert optimizers.match(optimizer(f"{home}SGD", 0.1)) == optimizers.SGD()
    assert optimizers.match(optimizer(f"{home}Adagrad", 0.1, initial_accumulator_value=0.5, epsilon=1e-3)) == (
        optimizers.Adagrad(initial_accumulator_value=0.5, epsilon=1e-3)
    )
    assert optimizers.match(optimizer(f"{home}Adam", 0.1, beta_1=0.8, beta_2=0.99, epsilon=1e-4)) == (
        optimizers.Adam(beta_1=0.8, beta_2=0.99, epsilon=1e-4)
    )


def test_subclasses_do_not_match() -> None:
    class Faster(keras.optimizers.SGD):
        pass

    for other in (Faster(0.1), optimizer("AdamW", 0.1), optimizer("Nadam", 0.1)):
        with pytest.raises(ValueError, match="sparse_optimizer="):
            optimizers.match(other)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optimizers.SGD(learning_rate="fast"), "learning_rate"),
        (lambda: optimizers.SGD(learning_rate=float("nan")), "learning_rate"),
        (lambda: optimizers.Adagrad(initial_accumulator_value=-1.0), "initial_accumulator_value"),
        (lambda: optimizers.Adagrad(initial_accumulator_value=0.0, epsilon=0.0), "epsilon"),
        (lambda: optimizers.Adam(beta_1=1.0), "beta_1"),
        (lambda: optimizers.Adam(beta_2=-0.1), "beta_2"),
        (lambda: optimizers.Adam(epsilon=0.0), "epsilon"),
        (lambda: optimizers.get("lion"), "adagrad"),
    ],
)
def test_bad_arguments(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "rule",
    [
        optimizers.SGD(learning_rate=1),
        optimizers.Adagrad(epsilon=1e-3),
        optimizers.Adam(learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)),
    ],
)
def test_configurations(rule: Any) -> None:
    again = optimizers.get(optimizers.serialize(rule))
    assert again is not None
    assert again.get_config() == rule.get_config()
    assert type(rule).from_config(rule.get_config()).get_config() == rule.get_config()
    # As tables' configurations make them.
    assert type(rule)(**rule.get_config()).get_config() == rule.get_config()


def test_hyperparameters_are_in_the_stores_order() -> None:
    assert optimizers.SGD(learning_rate=0.5).hyper_values(3) == [0.5]
    assert optimizers.Adagrad(learning_rate=0.5, epsilon=0.25).hyper_values(3) == [0.5, 0.25]
    assert optimizers.Adam(learning_rate=0.5).hyper_values(3) == [0.5, 0.9, 0.999, 1e-7, 3.0]
    assert (optimizers.SGD().slot_init, optimizers.Adagrad().slot_init, optimizers.Adam().slot_init) == (
        (),
        (0.1,),
        (0.0, 0.0),
    )
    tensor = optimizers.Adam().hyper_tensor(np.float32(0.25), np.int64(7))
    np.testing.assert_array_equal(tensor, np.array([0.25, 0.9, 0.999, 1e-7, 7], np.float32))
    with pytest.raises(ValueError, match="no wrapped optimizer"):
        optimizers.SGD().hyper_values(1)


def test_a_schedule_sees_the_steps_made_before() -> None:
    rule = optimizers.SGD(learning_rate=lambda step: 10.0 * step)
    assert [rule.hyper_values(step) for step in (1, 2, 3)] == [[0.0], [10.0], [20.0]]


def test_they_need_no_tensorflow() -> None:
    code = "import sys, tf_sparse_ps.optimizers as o; o.Adam(); sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
