"""Combines bags of rows on a device as the host does (`cc/core/gradients/bags.h`)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def combine(rows: tf.Tensor, splits: tf.Tensor, weights: tf.Tensor, combiner: str, device: str) -> tf.Tensor:
    """Combines the rows of each bag into one vector. Gradients reach rows and weights.

    Args:
      rows: float32[n, dim], the rows of all bags' items.
      splits: int64[bags + 1]; bag b is items [splits[b], splits[b + 1]).
      weights: float32[n], or float32[0]: every weight is 1.
      combiner: "sum": sum(w x); "mean": sum(w x) / sum(w); "sqrtn": sum(w x) / sqrt(sum(w^2)). An empty bag, and one
        whose divisor is 0, give zeros.
      device: TensorFlow's name of the device.

    Returns:
      float32[bags, dim].

    Raises:
      tf.errors.InvalidArgumentError: The splits decrease or do not end at n, or there are not n weights.
    """
    weighted = not (weights.shape.rank == 1 and weights.shape[0] == 0)
    with tf.device("/CPU:0"):
        n, bags = tf.shape(rows, tf.int64)[0], tf.size(splits, tf.int64) - 1
        sizes = splits[1:] - splits[:-1]
        ends_at_n = tf.debugging.assert_equal(splits[-1], n, "row splits must end at the number of items")
        with tf.control_dependencies([] if ends_at_n is None else [ends_at_n]):
            bag_of = tf.repeat(tf.range(bags), sizes)  # refuses sizes below 0
            if weighted:
                weights = tf.reshape(weights, tf.expand_dims(n, 0))  # refuses another number
    with tf.device(device):
        if not weighted:
            weights = tf.ones_like(bag_of, tf.float32)
        vectors: tf.Tensor = _combined(rows, weights, bag_of, tf.size(splits) - 1, combiner)
        vectors.set_shape([None, rows.shape[-1]])
        return vectors


def _combined(rows: tf.Tensor, weights: tf.Tensor, bag_of: tf.Tensor, bags: tf.Tensor, combiner: str) -> tf.Tensor:
    def sums(items: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(items, bag_of, bags)

    @tf.custom_gradient
    def combined(rows: tf.Tensor, weights: tf.Tensor) -> Any:
        divisor = tf.ones_like(sums(weights))
        if combiner == "mean":
            divisor = sums(weights)
        elif combiner == "sqrtn":
            divisor = tf.sqrt(sums(weights * weights))
        divides = divisor != 0
        safe = tf.where(divides, divisor, tf.ones_like(divisor))
        vectors = tf.where(divides[:, tf.newaxis], sums(rows * weights[:, tf.newaxis]) / safe[:, tf.newaxis], 0.0)

        def grad(upstream: tf.Tensor) -> Any:
            of_items = tf.gather(tf.convert_to_tensor(upstream), bag_of)
            divided = tf.where(divides, 1.0, 0.0)  # without a divisor nothing reaches rows and weights
            shares = weights / tf.gather(safe, bag_of) * tf.gather(divided, bag_of)
            dots = tf.reduce_sum(of_items * rows, axis=1)
            if combiner == "sum":
                return of_items * shares[:, tf.newaxis], dots
            shift = sums(weights * dots) / (safe if combiner == "mean" else safe * safe)
            others = tf.gather(shift, bag_of) * (1.0 if combiner == "mean" else weights)
            of_weights = (dots - others) / tf.gather(safe, bag_of) * tf.gather(divided, bag_of)
            return of_items * shares[:, tf.newaxis], of_weights

        return vectors, grad

    result: tf.Tensor = combined(rows, weights)
    return result
