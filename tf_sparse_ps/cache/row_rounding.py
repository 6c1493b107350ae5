"""Rounds updated rows to 16 bits in TensorFlow's ops, to the same bits as cc/core/table/row_type.cc."""

from __future__ import annotations

import tensorflow as tf

_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000  # of a float32
_BIAS_CHANGE = (127 - 15) << 23  # from the exponent of a float32 to that of a float16
_MIN_NORMAL = (127 - 14) << 23  # the smallest float16 that is not subnormal, as a float32


def to(dtype: str, values: tf.Tensor, draws: tf.Tensor | None) -> tf.Tensor:
    """Rounds rows to the type in which a table stores them.

    A finite value beyond the largest number of the type becomes that number, not infinity.

    Args:
      dtype: "float32", "bfloat16" or "float16".
      values: float32[u, dim].
      draws: int64[u], from `_ops.cache_draws`, which decide whether to round up or down. None rounds to the nearest
        number, ties to even.

    Returns:
      [u, dim] of `dtype`.
    """
    if dtype == "float32":
        return values
    if draws is None:
        return _nearest(dtype, values)
    return _stochastic(dtype, values, draws)


def _nearest(dtype: str, values: tf.Tensor) -> tf.Tensor:
    narrow = tf.cast(values, dtype)
    largest = tf.constant(tf.as_dtype(dtype).max, dtype)
    overflows = tf.math.is_inf(tf.cast(narrow, tf.float32)) & tf.math.is_finite(values)
    return tf.where(overflows, tf.where(values > 0, largest, -largest), narrow)


def _stochastic(dtype: str, values: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    bits = tf.bitcast(values, tf.uint32)
    magnitude = bits & _u32(_MAGNITUDE)
    drawn = _element_draws(draws, tf.shape(values)[1])
    if dtype == "bfloat16":
        infinite = 0x7F80
        rounded = _right(magnitude + _right(drawn, 16), 16)
    else:
        infinite = 0x7C00
        # In units of 2^-13 of the last place, since the draws have as many bits.
        subnormal = magnitude < _u32(_MIN_NORMAL)
        units = tf.bitcast(tf.where(subnormal, magnitude, _u32(0)), tf.float32) * 2.0**37
        fixed = tf.where(subnormal, tf.cast(tf.cast(units, tf.int32), tf.uint32), magnitude - _u32(_BIAS_CHANGE))
        rounded = _right(fixed + _right(drawn, 19), 13)
    finite = tf.where(rounded < _u32(infinite), rounded, _u32(infinite - 1))
    special = tf.where(magnitude > _u32(_INFINITY), _u32(infinite | infinite >> 1), _u32(infinite))
    narrow = tf.where(magnitude < _u32(_INFINITY), finite, special)
    return tf.bitcast(tf.cast(narrow | (_right(bits, 16) & _u32(0x8000)), tf.uint16), dtype)


def _element_draws(draws: tf.Tensor, dim: tf.Tensor) -> tf.Tensor:
    """Returns 32 bits for each number of each row, uint32[u, dim]: `ElementDraw` in row_type.cc."""
    halves = tf.bitcast(draws, tf.uint32)  # [u, 2], the low half first
    low, high = halves[:, :1], halves[:, 1:]
    x = low + tf.cast(tf.range(dim), tf.uint32) * _u32(0x9E3779B9)
    x = (x ^ _right(x, 16)) * _u32(0x85EBCA6B)
    x = x ^ high
    x = (x ^ _right(x, 13)) * _u32(0xC2B2AE35)
    return x ^ _right(x, 16)


def _right(x: tf.Tensor, places: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, _u32(places))


def _u32(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)
