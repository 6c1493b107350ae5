"""Row optimizers: matching, checks, configurations, hyperparameters."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from models import KERAS_3, keras, optimizer

from tf_sparse_ps import _table, optimizers

pytestmark = [pytest.mark.keras2_smoke, pytest.mark.quick]

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
    assert optimizers.match(optimizer(f"{home}SGD", 0.1, momentum=0.5, nesterov=True)) == (
        optimizers.SGD(momentum=0.5, nesterov=True)
    )
    assert optimizers.match(optimizer(f"{home}Adam", 0.1, amsgrad=True)) == optimizers.Adam(amsgrad=True)
    assert optimizers.match(optimizer(f"{home}Ftrl", 0.1, beta=0.5, l1_regularization_strength=0.25)) == (
        optimizers.Ftrl(beta=0.5, l1_regularization_strength=0.25)
    )


def test_match_of_what_has_no_legacy_form() -> None:
    assert optimizers.match(optimizer("AdamW", 0.1, weight_decay=0.01, beta_1=0.8)) == (
        optimizers.AdamW(weight_decay=0.01, beta_1=0.8)
    )
    assert optimizers.match(optimizer("RMSprop", 0.1, rho=0.8, momentum=0.5, centered=True)) == (
        optimizers.RMSprop(rho=0.8, momentum=0.5, centered=True)
    )


@pytest.mark.skipif(KERAS_3, reason="Keras 2's optimizers of before")
def test_a_legacy_rmsprop_has_another_rule() -> None:
    with pytest.raises(ValueError, match="sparse_optimizer="):
        optimizers.match(optimizer("legacy.RMSprop", 0.1))


@pytest.mark.parametrize(
    ("rule", "kind", "slots", "starts"),
    [
        (optimizers.SGD(), "sgd", (), ()),
        (optimizers.SGD(momentum=0.9), "momentum", ("momentum",), (0.0,)),
        (optimizers.Adagrad(), "adagrad", ("accumulator",), (0.1,)),
        (optimizers.RowwiseAdagrad(), "rowwise_adagrad", ("accumulator",), (0.0,)),
        (optimizers.Adam(), "adam", ("m", "v"), (0.0, 0.0)),
        (optimizers.Adam(amsgrad=True), "amsgrad", ("m", "v", "v_hat"), (0.0, 0.0, 0.0)),
        (optimizers.AdamW(), "adamw", ("m", "v"), (0.0, 0.0)),
        (optimizers.RMSprop(), "rmsprop", ("velocity",), (0.0,)),
        (optimizers.RMSprop(momentum=0.9), "rmsprop_momentum", ("velocity", "momentum"), (0.0, 0.0)),
        (optimizers.RMSprop(centered=True), "rmsprop_centered", ("velocity", "average_gradient"), (0.0, 0.0)),
        (
            optimizers.RMSprop(centered=True, momentum=0.9),
            "rmsprop_centered_momentum",
            ("velocity", "momentum", "average_gradient"),
            (0.0, 0.0, 0.0),
        ),
        (optimizers.Ftrl(), "ftrl", ("accumulator", "linear"), (0.1, 0.0)),
    ],
)
def test_kinds_and_slots_are_the_stores(
    rule: Any, kind: str, slots: tuple[str, ...], starts: tuple[float, ...]
) -> None:
    assert (rule.kind, rule.slots, rule.slot_init) == (kind, slots, starts)
    again = optimizers.of_kind(kind, starts)
    assert (again.kind, again.slot_init) == (kind, starts)
    assert len(rule.hyper(0.1, 1)) > 0
    assert _table.slot_widths(kind, 3) == [1 if kind == "rowwise_adagrad" else 3] * len(slots)


def test_subclasses_do_not_match() -> None:
    class Faster(keras.optimizers.SGD):
        pass

    for unmatched in (Faster(0.1), optimizer("Adamax", 0.1), optimizer("Nadam", 0.1)):
        with pytest.raises(ValueError, match="sparse_optimizer="):
            optimizers.match(unmatched)


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
        (lambda: optimizers.SGD(momentum=1.5), "momentum"),
        (lambda: optimizers.Adam(amsgrad=1), "amsgrad"),
        (lambda: optimizers.AdamW(weight_decay=-1.0), "weight_decay"),
        (lambda: optimizers.AdamW(amsgrad=True), "amsgrad"),
        (lambda: optimizers.RMSprop(rho=2.0), "rho"),
        (lambda: optimizers.RMSprop(epsilon=0.0), "epsilon"),
        (lambda: optimizers.Ftrl(beta=-1.0), "beta"),
        (lambda: optimizers.Ftrl(initial_accumulator_value=0.0), "initial_accumulator_value"),
        (lambda: optimizers.of_kind("lion", ()), "rmsprop_centered"),
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
        optimizers.RowwiseAdagrad(),
        optimizers.SGD(momentum=0.5, nesterov=True),
        optimizers.AdamW(weight_decay=0.5),
        optimizers.RMSprop(centered=True),
        optimizers.Ftrl(beta=0.5),
        optimizers.Adam(learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)),
    ],
)
def test_configurations(rule: Any) -> None:
    again = optimizers.get(optimizers.serialize(rule))
    assert again is not None
    assert again.get_config() == rule.get_config()
    assert type(rule).from_config(rule.get_config()).get_config() == rule.get_config()
    # Configurations of tables are made in this way.
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
