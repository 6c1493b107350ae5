"""The row optimizers' rules in TensorFlow's ops, for rows on a device. cc/core/table/row_updater.cc has the host's.

The rules take the hyperparameters of the host's kernels (`RowOptimizer.hyper`). Their results differ from the host's in
the last bits, because a device adds up in another order and computes other roots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

Rows = list[tf.Tensor]
# Takes hyperparameters float32[n], gradients float32[u, dim], and rows of the embedding and of the slots, float32[u,
# width] each. Returns the new rows.
Rule = Callable[[tf.Tensor, tf.Tensor, Sequence[tf.Tensor]], Rows]


def _sgd(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    return [rows[0] - hyper[0] * g]


def _momentum(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, m = rows
    step = hyper[0] * g
    m = hyper[1] * m - step
    return [w + tf.where(hyper[2] != 0, hyper[1] * m - step, m), m]


def _adagrad(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, a = rows
    a += g * g
    return [w - hyper[0] * g / tf.sqrt(a + hyper[1]), a]


def _rowwise_adagrad(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, a = rows
    a += tf.reduce_mean(g * g, axis=1, keepdims=True)
    return [w - hyper[0] / (tf.sqrt(a) + hyper[1]) * g, a]


def _moments(hyper: tf.Tensor, g: tf.Tensor, m: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the corrected rate and the new moments. Computes 1 - beta^t in float64: it cancels badly in float32."""
    wide = tf.cast(hyper[:5], tf.float64)
    beta_1, beta_2, t = wide[1], wide[2], wide[4]
    alpha = wide[0] * tf.sqrt(1 - tf.pow(beta_2, t)) / (1 - tf.pow(beta_1, t))
    m += (g - m) * tf.cast(1 - beta_1, tf.float32)
    v += (g * g - v) * tf.cast(1 - beta_2, tf.float32)
    return tf.cast(alpha, tf.float32), m, v


def _adam(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, m, v = rows
    alpha, m, v = _moments(hyper, g, m, v)
    return [w - m * alpha / (tf.sqrt(v) + hyper[3]), m, v]


def _adamw(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w = rows[0] - rows[0] * (hyper[5] * hyper[0])
    return _adam(hyper, g, [w, *rows[1:]])


def _amsgrad(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, m, v, largest = rows
    alpha, m, v = _moments(hyper, g, m, v)
    largest = tf.maximum(v, largest)
    return [w - m * alpha / (tf.sqrt(largest) + hyper[3]), m, v, largest]


def _rmsprop(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, v = rows
    v = hyper[1] * v + (1 - hyper[1]) * (g * g)
    return [w - hyper[0] * g / tf.sqrt(v + hyper[3]), v]


def _rmsprop_momentum(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, v, m = rows
    v = hyper[1] * v + (1 - hyper[1]) * (g * g)
    m = hyper[2] * m + hyper[0] * g / tf.sqrt(v + hyper[3])
    return [w - m, v, m]


def _rmsprop_centered(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, v, a = rows
    v = hyper[1] * v + (1 - hyper[1]) * (g * g)
    a = hyper[1] * a + (1 - hyper[1]) * g
    return [w - hyper[0] * g / tf.sqrt(v - a * a + hyper[3]), v, a]


def _rmsprop_centered_momentum(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, v, m, a = rows
    v = hyper[1] * v + (1 - hyper[1]) * (g * g)
    a = hyper[1] * a + (1 - hyper[1]) * g
    m = hyper[2] * m + hyper[0] * g / tf.sqrt(v - a * a + hyper[3])
    return [w - m, v, m, a]


def _ftrl(hyper: tf.Tensor, g: tf.Tensor, rows: Sequence[tf.Tensor]) -> Rows:
    w, a, z = rows
    rate, l1 = hyper[0], hyper[1]
    l2 = hyper[2] + hyper[4] / (2 * rate)
    total = a + g * g
    root = tf.sqrt(total)
    z += g + 2 * hyper[3] * w - (root - tf.sqrt(a)) / rate * w
    w = (tf.maximum(tf.minimum(z, l1), -l1) - z) / (root / rate + 2 * l2)
    return [w, total, z]


# By `RowOptimizer.kind`.
RULES: dict[str, Rule] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
    "adamw": _adamw,
    "amsgrad": _amsgrad,
    "rmsprop": _rmsprop,
    "rmsprop_momentum": _rmsprop_momentum,
    "rmsprop_centered": _rmsprop_centered,
    "rmsprop_centered_momentum": _rmsprop_centered_momentum,
    "ftrl": _ftrl,
}
