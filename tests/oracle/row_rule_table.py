"""The update rules that are drawn: their arguments for Keras and for the tables, and their parameters for NumPy.

This file has all numbers once, and reads nothing from the package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class RowRule:
    """An update rule.

    Attributes:
      kind: Its name in `tests/reference/row_rules.py`.
      keras: Class and arguments of the Keras optimizer; None: Keras has none.
      table: Class and arguments in `tsps.optimizers`.
      rate: The initial learning rate.
      hyper: Computes the hyperparameters, in the order of `row_rules`, from the learning rate and the number of the
        update (from 1).
      slot_init: The initial value of each slot's elements.
      row_wise: Whether slots have one float per row.
    """

    kind: str
    keras: tuple[str, dict[str, Any]] | None
    table: tuple[str, dict[str, Any]]
    rate: float
    hyper: Callable[[float, int], list[float]]
    slot_init: tuple[float, ...] = ()
    row_wise: bool = False


def _adam(kind: str, name: str, slots: int, **more: Any) -> RowRule:
    decay = [more["weight_decay"]] if "weight_decay" in more else []
    return RowRule(
        kind, (name, more), (name, more), 0.05, lambda rate, t: [rate, 0.9, 0.999, 1e-7, t, *decay], (0.0,) * slots
    )


def _rmsprop(kind: str, slots: int, momentum: float, epsilon: float, centered: bool) -> RowRule:
    arguments: dict[str, Any] = {"rho": 0.9, "momentum": momentum, "epsilon": epsilon, "centered": centered}
    return RowRule(
        kind,
        ("RMSprop", arguments),
        ("RMSprop", arguments),
        0.02,
        lambda rate, _: [rate, 0.9, momentum, epsilon],
        (0.0,) * slots,
    )


_FTRL = {
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.1,
    "l2_shrinkage_regularization_strength": 0.1,
    "beta": 0.5,
}
_ADAGRAD = {"initial_accumulator_value": 0.125, "epsilon": 1e-6}
_ROWWISE = {"initial_accumulator_value": 0.0, "epsilon": 1e-6}

RULES: dict[str, RowRule] = {
    "sgd": RowRule("sgd", ("SGD", {}), ("SGD", {}), 0.5, lambda rate, _: [rate]),
    "momentum": RowRule(
        "momentum", ("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.9}), 0.2, lambda rate, _: [rate, 0.9, 0], (0.0,)
    ),
    "nesterov": RowRule(
        "momentum",
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        0.2,
        lambda rate, _: [rate, 0.9, 1],
        (0.0,),
    ),
    "adagrad": RowRule(
        "adagrad", ("Adagrad", _ADAGRAD), ("Adagrad", _ADAGRAD), 0.3, lambda rate, _: [rate, 1e-6], (0.125,)
    ),
    "rowwise_adagrad": RowRule(
        "rowwise_adagrad", None, ("RowwiseAdagrad", _ROWWISE), 0.3, lambda rate, _: [rate, 1e-6], (0.0,), True
    ),
    "adam": _adam("adam", "Adam", 2),
    "amsgrad": _adam("amsgrad", "Adam", 3, amsgrad=True),
    "adamw": _adam("adamw", "AdamW", 2, weight_decay=0.1),
    "rmsprop": _rmsprop("rmsprop", 1, 0.0, 1e-7, False),
    "rmsprop_momentum": _rmsprop("rmsprop_momentum", 2, 0.5, 1e-7, False),
    "rmsprop_centered": _rmsprop("rmsprop_centered", 2, 0.0, 1e-3, True),
    "rmsprop_centered_momentum": _rmsprop("rmsprop_centered_momentum", 3, 0.5, 1e-3, True),
    "ftrl": RowRule(
        "ftrl", ("Ftrl", _FTRL), ("Ftrl", _FTRL), 0.3, lambda rate, _: [rate, 0.01, 0.1, 0.1, 0.5], (0.1, 0.0)
    ),
}
