"""Row optimizers and 16-bit rows in NumPy, in float32, with the library's order of operations: equal bit for bit.

It shares no code with the package: it follows the documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

F = np.float32
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

Slots = list[np.ndarray]


def update(kind: str, hyper: Sequence[float], w: np.ndarray, slots: Slots, g: np.ndarray) -> tuple[np.ndarray, Slots]:
    """Makes one update of rows float32[n, dim] with slots of the same shape ([n, 1] for row-wise rules).

    Args:
      kind: The rule's name in the store.
      hyper: The hyperparameters in the store's order.
      w, slots, g: Rows, slots and gradients, which stay unchanged.

    Returns:
      The new rows and slots.
    """
    h = [F(value) for value in hyper]
    lr = h[0]
    if kind == "sgd":
        return w - lr * g, []
    if kind == "adagrad":
        (total,) = slots
        total = total + g * g
        return w - lr * g / np.sqrt(total + h[1]), [total]
    if kind == "rowwise_adagrad":
        (total,) = slots
        total = total + _sum_of_squares(g) / F(g.shape[1])
        return w - (lr / (np.sqrt(total) + h[1])) * g, [total]
    if kind == "momentum":
        (m,) = slots
        step = lr * g
        m = h[1] * m - step
        return w + (h[1] * m - step if h[2] else m), [m]
    if kind in ("adam", "adamw", "amsgrad"):
        alpha, keep_1, keep_2, epsilon = _adam(h)
        m, v = slots[:2]
        if kind == "adamw":
            w = w - w * (h[5] * lr)
        m = m + (g - m) * keep_1
        v = v + (g * g - v) * keep_2
        if kind == "amsgrad":
            largest = np.where(v > slots[2], v, slots[2])
            return w - m * alpha / (np.sqrt(largest) + epsilon), [m, v, largest]
        return w - m * alpha / (np.sqrt(v) + epsilon), [m, v]
    if kind.startswith("rmsprop"):
        return _rmsprop(kind, h, w, slots, g)
    assert kind == "ftrl"
    l1, l2, shrinkage = h[1], h[2] + h[4] / (F(2) * lr), h[3]
    total, linear = slots
    new_total = total + g * g
    root = np.sqrt(new_total)
    line = linear + (g + F(2) * shrinkage * w - (root - np.sqrt(total)) / lr * w)
    return (np.clip(line, -l1, l1) - line) / (root / lr + F(2) * l2), [new_total, line]


def _rmsprop(kind: str, h: list[Any], w: np.ndarray, slots: Slots, g: np.ndarray) -> tuple[np.ndarray, Slots]:
    lr, rho, momentum, epsilon = h
    velocity = rho * slots[0] + (F(1) - rho) * (g * g)
    divisor, more_slots = velocity, []
    if "centered" in kind:
        mean = rho * slots[-1] + (F(1) - rho) * g
        divisor, more_slots = velocity - mean * mean, [mean]
    change = lr * g / np.sqrt(divisor + epsilon)
    if "momentum" in kind:
        change = momentum * slots[1] + change
        more_slots = [change, *more_slots]
    return w - change, [velocity, *more_slots]


def _adam(h: list[Any]) -> tuple[Any, ...]:
    """Computes in double precision, because 1 - beta^t cancels in float. The power is computed by squaring."""
    beta_1, beta_2, t = float(h[1]), float(h[2]), int(h[4])
    alpha = float(h[0]) * np.sqrt(1 - _power(beta_2, t)) / (1 - _power(beta_1, t))
    return F(alpha), F(1 - beta_1), F(1 - beta_2), h[3]


def _power(base: float, exponent: int) -> float:
    power = 1.0
    while exponent:
        if exponent & 1:
            power *= base
        base *= base
        exponent >>= 1
    return power


def _sum_of_squares(g: np.ndarray) -> np.ndarray:
    """Returns the sums of rows, float32[n, 1]: 16 partial sums are added to the sum of the remaining elements."""
    lanes, n_in_lanes = 16, g.shape[1] // 16 * 16
    partial = np.zeros((len(g), lanes), F)
    for i in range(0, n_in_lanes, lanes):
        partial += g[:, i : i + lanes] * g[:, i : i + lanes]
    total = np.zeros(len(g), F)
    for i in range(n_in_lanes, g.shape[1]):
        total += g[:, i] * g[:, i]
    for k in range(lanes):
        total += partial[:, k]
    return total[:, None]


# --- rows of 16 bits ---


def widen(stored: np.ndarray) -> np.ndarray:
    """Returns the floats that 16-bit rows represent."""
    return stored.astype(F)


def nearest(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds to the nearest value, ties to even. Finite values stay finite."""
    most = F(ml_dtypes.finfo(TYPES[dtype]).max)
    limited = np.where(np.isfinite(values), np.clip(values, -most, most), values)
    return limited.astype(TYPES[dtype])


def stochastic(values: np.ndarray, dtype: str, draws: np.ndarray) -> np.ndarray:
    """Rounds up or down.

    Args:
      values: Finite float32[n, dim], far from the largest finite value.
      dtype: "bfloat16" or "float16".
      draws: uint64[n], from `row_draws`.
    """
    low, high = (draws & 0xFFFFFFFF).astype(np.uint32)[:, None], (draws >> 32).astype(np.uint32)[:, None]
    x = low + np.arange(values.shape[1], dtype=np.uint32) * np.uint32(0x9E3779B9)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= high
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    fraction_bits, smallest = (7, -126) if dtype == "bfloat16" else (10, -14)
    drawn_bits = 23 - fraction_bits
    exponents = np.maximum(np.frexp(values)[1] - 1, smallest)
    units = np.trunc(np.ldexp(np.abs(values).astype(np.float64), drawn_bits + fraction_bits - exponents))
    magnitude = np.floor(np.ldexp(units + (x >> np.uint32(32 - drawn_bits)), -drawn_bits))
    return np.copysign(np.ldexp(magnitude, exponents - fraction_bits), values).astype(TYPES[dtype])


def row_draws(seed: int, salt: int, keys: np.ndarray, step: int) -> np.ndarray:
    """Returns uint64[n], which decide the rounding of rows."""
    of_table = _hash(np.uint64(salt), _hash(np.uint64(seed), np.uint64(0)))
    return _hash(np.uint64(step), _hash(keys.astype(np.int64).view(np.uint64), of_table))


def _hash(key: Any, seed: Any) -> Any:
    """MurmurHash3's finalizer of 64 bits."""
    with np.errstate(over="ignore"):
        h = key ^ seed
        h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        return h ^ (h >> np.uint64(33))
