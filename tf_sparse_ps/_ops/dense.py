"""Joins dense gradients in one buffer, and computes their weighted mean over the ranks from the reduced buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._ops.library import lib


def weighted_concat(tensors: Sequence[tf.Tensor], weight: tf.Tensor, tail: tf.Tensor) -> tf.Tensor:
    """Returns the elements of all tensors, concatenated and multiplied by a weight, then the tail: float32[n + m].

    Args:
        tensors: The tensors, float32, with n elements in total.
        weight: The weight, a float32 scalar. Weight 0 makes all elements 0, NaN and inf included.
        tail: A vector that is appended unchanged, float32[m].
    """
    return lib.tsps_weighted_concat(tensors, weight, tail)


def mean_split(like: Sequence[tf.Tensor], sums: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
    """Divides weighted sums by the sum of weights, and splits the result into tensors.

    Args:
        like: Tensors of float32, whose shapes the results have. The results reuse their memory if nothing else uses it.
        sums: The weighted sums, float32[n or more], where n is the number of elements of `like`. More are ignored.
        weights: The sum of weights, a float32 scalar. If it is 0 or not finite, the results are zeros.
    """
    return list(lib.tsps_mean_split(like, sums, weights))


@tf.RegisterGradient("TspsWeightedConcat")
def _weighted_concat_gradient(op: Any, grad: tf.Tensor) -> list[tf.Tensor]:
    *tensors, weight, tail = op.inputs
    *pieces, tail_grad = tf.split(grad, [tf.size(tensor) for tensor in [*tensors, tail]])
    pieces = [tf.reshape(piece, tf.shape(tensor)) for piece, tensor in zip(pieces, tensors, strict=True)]
    products = [tf.reduce_sum(piece * tensor) for piece, tensor in zip(pieces, tensors, strict=True)]
    tensor_grads = [tf.math.multiply_no_nan(piece, weight) for piece in pieces]
    return [*tensor_grads, tf.add_n([tf.zeros([]), *products]), tail_grad]


@tf.RegisterGradient("TspsMeanSplit")
def _mean_split_gradient(op: Any, *grads: tf.Tensor) -> list[tf.Tensor | None]:
    *like, sums, weights = op.inputs
    weights = tf.where(tf.math.is_finite(weights), weights, 0.0)
    ignored = tf.size(sums) - tf.add_n([tf.constant(0), *(tf.size(tensor) for tensor in like)])
    joined = tf.concat([*(tf.reshape(grad, [-1]) for grad in grads), tf.zeros([ignored])], 0)
    sums_grad = tf.math.divide_no_nan(joined, weights)
    weights_grad = -tf.math.divide_no_nan(tf.reduce_sum(sums_grad * sums), weights)
    return [*(None for _ in like), sums_grad, weights_grad]
