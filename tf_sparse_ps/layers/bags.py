"""Bags of ids in the form that the pooled lookup takes: flat ids, row splits, weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_sparse_ps.layers.ids import to_int64


@dataclasses.dataclass
class Bags:
    """The bags of a feature, flattened.

    Attributes:
      ids: The ids of all bags, int64[n].
      splits: The row splits, int64[bags + 1].
      weights: The weight of each id, float32[n], or float32[0]: all 1.
      restore: A function that gives pooled rows, float[bags, dim], the shape of the inputs.
    """

    ids: tf.Tensor
    splits: tf.Tensor
    weights: tf.Tensor
    restore: Callable[[tf.Tensor], Any]


def from_inputs(inputs: Any, weights: Any, layer: str, *, combiner: str, bounded: bool) -> Bags:
    """Flattens ids and weights.

    Args:
      inputs: Integers or strings; dense, ragged or sparse. The last dimension is the bag.
      weights: Floats of the same kind and shape, or None.
      layer: The name of the layer, for messages.
      combiner: The combiner. The bags of a dense tensor of one dimension have one id each, so only "sum" uses weights.
      bounded: Whether the vocabulary is bounded, so that ids must be integers.

    Raises:
      ValueError: The inputs have no type of ids, their rank is unknown or too low, or the weights have another kind or
        shape.
    """
    if isinstance(inputs, tf.RaggedTensor):
        ids = inputs.with_flat_values(to_int64(inputs.flat_values, layer, bounded=bounded))
        return _ragged(ids, weights, layer, combiner)
    if isinstance(inputs, tf.SparseTensor):
        values = to_int64(inputs.values, layer, bounded=bounded)
        return _sparse(tf.SparseTensor(inputs.indices, values, inputs.dense_shape), weights, layer)
    return _dense(to_int64(tf.convert_to_tensor(inputs), layer, bounded=bounded), weights, layer, combiner)


def _dense(ids: tf.Tensor, weights: Any, layer: str, combiner: str) -> Bags:
    if weights is not None:
        weights = tf.cast(tf.convert_to_tensor(weights), tf.float32)
        if not ids.shape.is_compatible_with(weights.shape):
            raise _mismatch(layer, ids.shape, weights.shape)
        if not (ids.shape.is_fully_defined() and weights.shape.is_fully_defined()):
            weights = _if_equal(
                weights, tf.shape(ids), tf.shape(weights), f"{layer!r}: weights and ids must have the same shape"
            )
    if ids.shape.rank is None:
        raise ValueError(f"layer {layer!r}: the rank of the ids must be known. Received: {ids.shape}")
    if ids.shape.rank == 0:
        raise ValueError(f"layer {layer!r}: ids must have at least one dimension. Received: a scalar")
    flat = tf.reshape(ids, [-1])
    n = tf.size(flat, tf.int64)
    if ids.shape.rank == 1:
        splits = tf.range(n + 1)
        return Bags(flat, splits, _flat_weights(weights if combiner == "sum" else None), lambda rows: rows)
    shape = tf.shape(ids, tf.int64)
    bags = tf.reduce_prod(shape[:-1])
    splits = tf.range(bags + 1) * shape[-1]

    def restore(rows: tf.Tensor) -> tf.Tensor:
        if ids.shape.rank == 2:
            rows.set_shape([ids.shape[0], None])
            return rows
        result = tf.reshape(rows, tf.concat([shape[:-1], [tf.shape(rows, tf.int64)[-1]]], 0))
        result.set_shape([*ids.shape[:-1], rows.shape[-1]])
        return result

    return Bags(flat, splits, _flat_weights(weights), restore)


def _ragged(ids: tf.RaggedTensor, weights: Any, layer: str, combiner: str) -> Bags:
    if weights is not None and (not isinstance(weights, tf.RaggedTensor) or weights.ragged_rank != ids.ragged_rank):
        raise _mismatch(layer, ids.shape, getattr(weights, "shape", weights))
    if weights is not None:
        problem = f"{layer!r}: ragged ids and weights must have the same rows"
        weights = weights.with_flat_values(_if_equal(weights.flat_values, ids.row_splits, weights.row_splits, problem))
    if ids.ragged_rank > 1:
        inner = _ragged(ids.values, None if weights is None else weights.values, layer, combiner)
        return dataclasses.replace(inner, restore=lambda rows: ids.with_values(inner.restore(rows)))
    if ids.flat_values.shape.rank != 1:  # ragged outside, uniform bags
        inner = _dense(ids.values, None if weights is None else weights.values, layer, combiner)
        return dataclasses.replace(inner, restore=lambda rows: ids.with_values(inner.restore(rows)))
    splits = tf.cast(ids.row_splits, tf.int64)
    flat_weights = _flat_weights(None if weights is None else tf.cast(weights.flat_values, tf.float32))
    return Bags(ids.flat_values, splits, flat_weights, lambda rows: rows)


def _sparse(ids: tf.SparseTensor, weights: Any, layer: str) -> Bags:
    if weights is not None and not isinstance(weights, tf.SparseTensor):
        raise _mismatch(layer, ids.shape, getattr(weights, "shape", weights))
    rank = ids.shape.rank
    if rank is None or rank < 2:
        raise ValueError(f"layer {layer!r}: sparse ids must have a known rank of 2 or more. Received: {ids.shape}")
    shape = ids.dense_shape
    bags = tf.reduce_prod(shape[:-1])
    flat_shape = tf.stack([bags, shape[-1]])  # without -1, because there may be no column
    flat = tf.sparse.reorder(tf.sparse.reshape(ids, flat_shape))
    flat_weights = None
    if weights is not None:
        as_float = tf.SparseTensor(weights.indices, tf.cast(weights.values, tf.float32), weights.dense_shape)
        ordered = tf.sparse.reorder(tf.sparse.reshape(as_float, flat_shape))
        problem = f"{layer!r}: sparse ids and weights must have the same entries"
        flat_weights = _if_equal(ordered.values, flat.indices, ordered.indices, problem)
    splits = tf.searchsorted(flat.indices[:, 0], tf.range(bags + 1), out_type=tf.int64)

    def restore(rows: tf.Tensor) -> tf.Tensor:
        result = rows if rank == 2 else tf.reshape(rows, tf.concat([shape[:-1], [tf.shape(rows, tf.int64)[-1]]], 0))
        result.set_shape([*ids.shape[:-1], rows.shape[-1]])
        return result

    return Bags(flat.values, splits, _flat_weights(flat_weights), restore)


def _if_equal(weights: tf.Tensor, of_ids: tf.Tensor, of_weights: tf.Tensor, problem: str) -> tf.Tensor:
    """Returns the weights. Raises InvalidArgumentError if two descriptions of structure differ; in a graph: later."""
    if of_weights is of_ids:
        return weights
    check = tf.debugging.assert_equal(tf.cast(of_weights, tf.int64), tf.cast(of_ids, tf.int64), f"layer {problem}")
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(weights)


def _flat_weights(weights: tf.Tensor | None) -> tf.Tensor:
    return tf.zeros([0]) if weights is None else tf.reshape(weights, [-1])


def _mismatch(layer: str, ids: Any, weights: Any) -> ValueError:
    return ValueError(
        f"layer {layer!r}: weights must be of the same kind (dense, ragged or sparse) and shape as the ids. "
        f"Received: ids {ids}, weights {weights}"
    )
