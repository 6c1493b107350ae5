"""Constraints in TensorFlow's ops, for rows on a device. cc/core/table/row_updater.cc has them for the host."""

from __future__ import annotations

import tensorflow as tf

_NONNEG, _UNITNORM, _MINMAXNORM = 1, 3, 4  # ConstraintKind in row_optimizer.h


def apply(kind: int, limits: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Applies a constraint to updated rows.

    Args:
      kind: `config.constraints.Resolved.kind`.
      limits: float32[4]: min_value, max_value, rate, epsilon.
      rows: float32[u, dim], after their update.

    Returns:
      float32[u, dim].
    """
    if kind == _NONNEG:
        return tf.where(rows < 0, tf.zeros_like(rows), rows)
    low, high, rate, epsilon = (limits[i] for i in range(4))
    norms = tf.sqrt(tf.reduce_sum(rows * rows, axis=1, keepdims=True))
    wanted = tf.minimum(norms, high)
    if kind == _UNITNORM:
        wanted = tf.ones_like(norms)
    elif kind == _MINMAXNORM:
        wanted = rate * tf.maximum(wanted, low) + (1 - rate) * norms
    return rows * (wanted / (epsilon + norms))
