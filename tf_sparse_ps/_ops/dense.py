"""Dense gradients on their way to their weighted mean over the ranks, as one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._ops.library import lib


def weighted_concat(tensors: Sequence[tf.Tensor], weight: tf.Tensor, tail: tf.Tensor) -> tf.Tensor:
    """The elements of all tensors, one tensor after another, times a weight, and then the tail: float32[n + m].

    Args:
        tensors: of float32.
        weight: float32 scalar. Where it is 0 all elements are, even of NaN and inf.
        tail: float32[m], which stays as it is.
    """
    return lib.tsps_weighted_concat(tensors, weight, tail)


def mean_split(like: Sequence[tf.Tensor], sums: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
    """Weighted sums divided by the sum of weights, as tensors; zeros where that is 0 or not finite.

    Args:
        like: of float32; the results have their shapes, and their memory where nobody else needs it any more.
        sums: float32[n or more], n being the number of elements of `like`; more are left over.
        weights: float32 scalar.
    """
    return list(lib.tsps_mean_split(like, sums, weights))


@tf.RegisterGradient("TspsWeightedConcat")
def _weighted_concat_gradient(op: Any, grad: tf.Tensor) -> list[tf.Tensor]:
    *tensors, weight, tail = op.inputs
    *pieces, of_tail = tf.split(grad, [tf.size(one) for one in [*tensors, tail]])
    pieces = [tf.reshape(piece, tf.shape(one)) for piece, one in zip(pieces, tensors, strict=True)]
    products = [tf.reduce_sum(piece * one) for piece, one in zip(pieces, tensors, strict=True)]
    of_tensors = [tf.math.multiply_no_nan(piece, weight) for piece in pieces]
    return [*of_tensors, tf.add_n([tf.zeros([]), *products]), of_tail]


@tf.RegisterGradient("TspsMeanSplit")
def _mean_split_gradient(op: Any, *grads: tf.Tensor) -> list[tf.Tensor | None]:
    *like, sums, weights = op.inputs
    weights = tf.where(tf.math.is_finite(weights), weights, 0.0)
    left_over = tf.size(sums) - tf.add_n([tf.constant(0), *(tf.size(one) for one in like)])
    joined = tf.concat([*(tf.reshape(one, [-1]) for one in grads), tf.zeros([left_over])], 0)
    of_sums = tf.math.divide_no_nan(joined, weights)
    of_weights = -tf.math.divide_no_nan(tf.reduce_sum(of_sums * sums), weights)
    return [*(None for _ in like), of_sums, of_weights]
