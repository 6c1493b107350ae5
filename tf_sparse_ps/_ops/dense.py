"""Dense gradients on their way to their weighted mean over the ranks, as one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._ops.library import lib


def weighted_concat(tensors: Sequence[tf.Tensor], weight: tf.Tensor) -> tf.Tensor:
    """The elements of all tensors, one tensor after another, times a weight: float32[n].

    Args:
        tensors: of float32.
        weight: float32 scalar. Where it is 0 all elements are, even of NaN and inf.
    """
    return lib.tsps_weighted_concat(tensors, weight)


def mean_split(like: Sequence[tf.Tensor], sums: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
    """Weighted sums divided by the sum of weights, as tensors; zeros where that is 0 or not finite.

    Args:
        like: of float32; the results have their shapes, and their memory where nobody else needs it any more.
        sums: float32[n], as many as `like` has elements, in that order.
        weights: float32 scalar.
    """
    return list(lib.tsps_mean_split(like, sums, weights))


@tf.RegisterGradient("TspsWeightedConcat")
def _weighted_concat_gradient(op: Any, grad: tf.Tensor) -> list[tf.Tensor]:
    *tensors, weight = op.inputs
    pieces = _split(grad, tensors)
    of_weight = tf.add_n([tf.reduce_sum(piece * one) for piece, one in zip(pieces, tensors, strict=True)])
    return [*(tf.math.multiply_no_nan(piece, weight) for piece in pieces), of_weight]


@tf.RegisterGradient("TspsMeanSplit")
def _mean_split_gradient(op: Any, *grads: tf.Tensor) -> list[tf.Tensor | None]:
    *like, sums, weights = op.inputs
    weights = tf.where(tf.math.is_finite(weights), weights, 0.0)
    of_sums = tf.math.divide_no_nan(tf.concat([tf.reshape(one, [-1]) for one in grads], 0), weights)
    of_weights = -tf.math.divide_no_nan(tf.reduce_sum(of_sums * sums), weights)
    return [*(None for _ in like), of_sums, of_weights]


def _split(buffer: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    pieces = tf.split(buffer, [tf.size(one) for one in like])
    return [tf.reshape(piece, tf.shape(one)) for piece, one in zip(pieces, like, strict=True)]
