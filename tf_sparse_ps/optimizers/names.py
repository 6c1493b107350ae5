"""Row optimizers by their names, in configurations and in saved tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tf_sparse_ps.optimizers.rules import SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop, RowOptimizer, RowwiseAdagrad

BY_NAME: dict[str, type[RowOptimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "rowwise_adagrad": RowwiseAdagrad,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
    "ftrl": Ftrl,
}


def of_kind(kind: str, slot_init: Sequence[float]) -> RowOptimizer:
    """Returns the row optimizer that a saved table records. Fields that a table does not record have their defaults.

    Args:
      kind: The `RowOptimizer.kind`.
      slot_init: The `RowOptimizer.slot_init`.

    Raises:
      ValueError: No rule has this kind.
    """
    variants = (SGD(momentum=0.9), Adam(amsgrad=True), RMSprop(momentum=0.9), RMSprop(centered=True))
    rules = [*(rule() for rule in BY_NAME.values()), *variants, RMSprop(momentum=0.9, centered=True)]
    for rule in rules:
        if rule.kind != kind:
            continue
        if isinstance(rule, (Adagrad, Ftrl)):
            return dataclasses.replace(rule, initial_accumulator_value=slot_init[0])
        return rule
    raise ValueError(f"no row optimizer is of kind {kind!r}, only {sorted(rule.kind for rule in rules)}")


def get(identifier: RowOptimizer | str | dict[str, Any] | None) -> RowOptimizer | None:
    """Returns a row optimizer, given an instance, a name ("sgd", "adam", "ftrl", ...) or the result of `serialize`.

    Raises:
      ValueError: The identifier is none of these.
    """
    if identifier is None or isinstance(identifier, RowOptimizer):
        return identifier
    if isinstance(identifier, str) and identifier.lower() in BY_NAME:
        return BY_NAME[identifier.lower()]()
    if isinstance(identifier, dict) and identifier.get("name") in BY_NAME:
        return BY_NAME[identifier["name"]].from_config(identifier["config"])
    raise ValueError(
        f"expected a row optimizer (tsps.optimizers.SGD, Adagrad, Adam, ...) or one of {sorted(BY_NAME)}. "
        f"Received: {identifier!r}"
    )


def serialize(optimizer: RowOptimizer | None) -> dict[str, Any] | None:
    """Returns a form for configurations, which `get` reads.

    Raises:
      ValueError: The optimizer is of a subclass, which a file cannot name.
    """
    if optimizer is None:
        return None
    name = next((name for name, rule in BY_NAME.items() if type(optimizer) is rule), None)
    if name is None:
        raise ValueError(
            f"a model with the row optimizer {type(optimizer).__name__} cannot be saved: a file can only name one of "
            f"{sorted(BY_NAME)}, not a subclass. Use a class of tsps.optimizers itself"
        )
    return {"name": name, "config": optimizer.get_config()}
