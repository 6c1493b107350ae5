"""Translates a Keras constraint, in any of its forms, to the parameters with which the store constrains rows.

Keras applies a constraint to the whole matrix after every step. The store applies it only to the rows that the step has
touched. All other rows stay as they are, so a row that was never trained has its unconstrained initial value.
Norms are those of rows: `axis=1`. Keras's default, `axis=0`, is the norm of a column over the whole vocabulary.

Checked against keras 2.15 and 3.15 (src/constraints/constraints.py).
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

from tf_sparse_ps.config import keras_objects
from tf_sparse_ps.errors import UnsupportedError

_ALIASES = {"non_neg": "nonneg", "max_norm": "maxnorm", "unit_norm": "unitnorm", "min_max_norm": "minmaxnorm"}
_KINDS = {"nonneg": 1, "maxnorm": 2, "unitnorm": 3, "minmaxnorm": 4}  # ConstraintKind in row_optimizer.h
_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A constraint in the store's form. Its parameters follow the hyperparameters of a row optimizer.

    Attributes:
      kind: 1: no element below 0; 2: norm at most max_value; 3: norm 1; 4: norm from min_value to max_value.
      min_value: The smallest norm.
      max_value: The largest norm.
      rate: For kind 4, the fraction of the way to the nearest limit that one update moves a norm outside of the limits.
      epsilon: The number that is added to a norm before a division by it: `keras.config.epsilon()` at the time of
        `resolve`.
    """

    kind: int
    min_value: float = 0.0
    max_value: float = 1.0
    rate: float = 1.0
    epsilon: float = _EPSILON

    @property
    def parameters(self) -> list[float]:
        """The kind and the parameters, in the order that the store expects."""
        return [float(self.kind), self.min_value, self.max_value, self.rate, self.epsilon]


def resolve(constraint: Any) -> Resolved | None:
    """Translates a constraint.

    Args:
      constraint: A Keras constraint: NonNeg, MaxNorm, UnitNorm or MinMaxNorm as name, dict, object or class; or None.

    Raises:
      UnsupportedError: The constraint is another one, or its norm is not that of a row.
      ValueError: The argument is no constraint, or its parameters are out of range.
    """
    if constraint is None:
        return None
    name, config = keras_objects.name_and_config(constraint, "a constraint", _ALIASES)
    kind = _KINDS.get(name)
    if kind is None:
        raise UnsupportedError(
            "a constraint of a table must be NonNeg, MaxNorm, UnitNorm or MinMaxNorm, because the store applies it to "
            f"single rows. Received: {constraint!r}"
        )
    if name != "nonneg":
        axis = config.get("axis", 0)
        if axis not in (1, -1, [1], [-1], (1,), (-1,)):
            raise UnsupportedError(
                f"{constraint!r} has axis={axis!r}, which is the norm of columns over the whole vocabulary. A table's "
                "constraint sees one row at a time. Use axis=1, the norm of a row"
            )
    low, high = float(config.get("min_value", 0.0)), float(config.get("max_value", 2.0 if kind == 2 else 1.0))
    rate = float(config.get("rate", 1.0))
    if not (0 <= low <= high < math.inf and 0 <= rate <= 1):
        raise ValueError(
            f"a constraint must have 0 <= min_value <= max_value and a rate of 0 to 1. Received: {constraint!r} with "
            f"{config}"
        )
    return Resolved(kind, low, high, rate, _keras_epsilon())


def serialize(constraint: Any) -> Any:
    """Returns a JSON-serialisable form of a constraint."""
    return keras_objects.serialize(constraint, "constraints")


def _keras_epsilon() -> float:
    keras = sys.modules.get("keras")
    return float(keras.backend.epsilon()) if keras is not None else _EPSILON
