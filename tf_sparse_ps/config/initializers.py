"""Translates a Keras initializer, in any of its forms, to the core's (kind, a, b), or to explicit values.

- zeros, ones, constant, uniform, normal and truncated normal are pure functions of (seed, table, key). They work for
  any table, and a row takes no memory until it is trained.
- glorot, he, lecun and VarianceScaling depend on the table's shape, so they need a bounded table. With the shape known,
  they are uniform or normal.
- Any other initializer, a custom one included, is called once for the whole matrix, which the leader then writes. It
  needs a bounded table, too.

Checked against keras 2.15 and 3.15 (src/initializers/random_initializers.py).
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.config import keras_objects
from tf_sparse_ps.errors import UnsupportedError

# The standard deviation of a normal distribution that is cut at two standard deviations. Keras divides by it.
_TRUNCATED_STDDEV = 0.87962566103423978

_ALIASES = {
    "zero": "zeros",
    "one": "ones",
    "uniform": "randomuniform",
    "normal": "randomnormal",
    "random_uniform": "randomuniform",
    "random_normal": "randomnormal",
    "truncated_normal": "truncatednormal",
    "variance_scaling": "variancescaling",
    "glorot_uniform": "glorotuniform",
    "glorot_normal": "glorotnormal",
    "he_uniform": "heuniform",
    "he_normal": "henormal",
    "lecun_uniform": "lecununiform",
    "lecun_normal": "lecunnormal",
}
_SCALED = {
    "glorotuniform": {"scale": 1.0, "mode": "fan_avg", "distribution": "uniform"},
    "glorotnormal": {"scale": 1.0, "mode": "fan_avg", "distribution": "truncated_normal"},
    "heuniform": {"scale": 2.0, "mode": "fan_in", "distribution": "uniform"},
    "henormal": {"scale": 2.0, "mode": "fan_in", "distribution": "truncated_normal"},
    "lecununiform": {"scale": 1.0, "mode": "fan_in", "distribution": "uniform"},
    "lecunnormal": {"scale": 1.0, "mode": "fan_in", "distribution": "truncated_normal"},
    "variancescaling": {"scale": 1.0, "mode": "fan_in", "distribution": "truncated_normal"},
}


@dataclasses.dataclass(frozen=True)
class Resolved:
    """An initializer in the core's form.

    Attributes:
      kind: "zeros", "constant", "uniform", "normal" or "truncated_normal".
      a: The first parameter of this kind (initializer.h).
      b: The second parameter.
      seed: The initializer's own seed, or None.
      values: The function that makes the whole matrix, float32[key_limit, dim], of an explicit initializer; else None.
    """

    kind: str
    a: float = 0.0
    b: float = 0.0
    seed: int | None = None
    values: Callable[[], npt.NDArray[np.float32]] | None = None


def deciding(initializer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those facts of an initializer, as the core describes it, that decide the initial values of keys."""
    names = ["kind", "a", "b"] + ([] if initializer["kind"] in ("zeros", "constant") else ["seed", "salt"])
    return {name: initializer[name] for name in names}


def resolve(initializer: Any, *, dim: int, key_limit: int | None) -> Resolved:
    """Translates an initializer.

    Args:
      initializer: A Keras initializer: name, dict, object, class or callable `(shape, dtype) -> values`; None: zeros.
      dim: The width of the table.
      key_limit: The number of rows of a bounded table, or None.

    Raises:
      UnsupportedError: The initializer needs a bounded table, and the table is unbounded.
      ValueError: The argument is no initializer, or its parameters are not finite.
    """
    initializer = "zeros" if initializer is None else initializer
    name, config = keras_objects.name_and_config(initializer, "an initializer", _ALIASES)
    seed = config.get("seed")
    seed = seed if isinstance(seed, int) and seed >= 0 else None

    def in_core_form(kind: str, a: float = 0.0, b: float = 0.0) -> Resolved:
        if not (math.isfinite(a) and math.isfinite(b)):
            raise ValueError(f"initializer parameters must be finite. Received: {name} with {config}")
        return Resolved(kind, a, b, seed)

    if name == "zeros":
        return in_core_form("zeros")
    if name == "ones":
        return in_core_form("constant", 1.0)
    if name == "constant" and np.ndim(config.get("value", 0.0)) == 0:
        return in_core_form("constant", float(config.get("value", 0.0)))
    if name == "randomuniform":
        return in_core_form("uniform", float(config.get("minval", -0.05)), float(config.get("maxval", 0.05)))
    if name in ("randomnormal", "truncatednormal"):
        kind = "normal" if name == "randomnormal" else "truncated_normal"
        return in_core_form(kind, float(config.get("mean", 0.0)), float(config.get("stddev", 0.05)))
    if key_limit is None:
        raise UnsupportedError(
            f"the initializer {name or initializer!r} depends on the whole matrix, and a table with an unbounded "
            "vocabulary has none. Use zeros, ones, constant, uniform, normal or truncated_normal, or give the table "
            f"an input_dim (key_limit). Received: {initializer!r}"
        )
    if name in _SCALED:
        return in_core_form(*_variance_scaling(_SCALED[name] | config, key_limit, dim))
    return Resolved("zeros", seed=seed, values=lambda: _explicit_values(initializer, key_limit, dim))


def serialize(initializer: Any) -> Any:
    """Returns a JSON-serialisable form of an initializer."""
    return keras_objects.serialize(initializer, "initializers")


def _variance_scaling(config: dict[str, Any], rows: int, dim: int) -> tuple[str, float, float]:
    # As in Keras, fan_in of a matrix is its first dimension.
    fan = {"fan_in": rows, "fan_out": dim, "fan_avg": (rows + dim) / 2.0}[str(config["mode"]).lower()]
    scale = float(config["scale"]) / max(1.0, fan)
    distribution = str(config["distribution"]).lower()
    if distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return "uniform", -limit, limit
    if distribution == "untruncated_normal":
        return "normal", 0.0, math.sqrt(scale)
    return "truncated_normal", 0.0, math.sqrt(scale) / _TRUNCATED_STDDEV


def _explicit_values(initializer: Any, rows: int, dim: int) -> npt.NDArray[np.float32]:
    if isinstance(initializer, str | dict) or not callable(initializer):
        from tf_sparse_ps._compat._keras import keras  # imports TensorFlow, which the store does not need

        initializer = keras.initializers.get(initializer)
    tensorflow = sys.modules.get("tensorflow")
    context: Any = tensorflow.init_scope() if tensorflow is not None else None
    if context is None:
        values = initializer((rows, dim), dtype="float32")
    else:
        with context:  # a layer may be built while TensorFlow traces a graph
            values = initializer((rows, dim), dtype="float32")
    matrix = np.ascontiguousarray(np.asarray(values), dtype=np.float32)
    if matrix.shape != (rows, dim):
        raise ValueError(
            f"the initializer must return values of shape {(rows, dim)}. Received: {matrix.shape} from {initializer!r}"
        )
    return matrix
