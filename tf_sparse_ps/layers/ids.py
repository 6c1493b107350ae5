"""Ids as lookups take them: int64, checked."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras_inputs


def refuse_other_than_integers(ids: Any, layer: str) -> None:
    """Raises ValueError if ids, a tensor or a symbolic tensor of Keras, are not of an integer type."""
    dtype = tf.as_dtype(ids.dtype)
    if not dtype.is_integer or dtype.is_quantized:
        raise ValueError(
            f"layer {layer!r}: ids must be integers. Floats would merge ids. Convert strings by a StringLookup or "
            f"Hashing layer first. A model's input is float32 unless you use keras.Input(shape, dtype='int64'). "
            f"Received: inputs of dtype {dtype.name}"
        )


def to_int64(ids: tf.Tensor, layer: str) -> tf.Tensor:
    """Converts ids to int64. No id is truncated.

    Args:
      ids: Integers of any shape.
      layer: The name of the layer, for messages.

    Raises:
      ValueError: The ids are no integers, or were none before Keras cast them to the type of a `keras.Input`.
      InvalidArgumentError (TensorFlow's): An id does not fit the type it is cast to; raised when the graph runs.
    """
    checks = []
    for uncast, dtype in _keras_inputs.cast_for_input(ids):
        if not uncast.dtype.is_integer:
            raise ValueError(
                f"layer {layer!r}: ids must be integers. The model was given {uncast.dtype.name}, which Keras has cast "
                f"to the {dtype.name} of its keras.Input. Floats from 2**24 on would merge ids. Pass integers, for "
                f"example ids.astype('int64'). Received: inputs of dtype {uncast.dtype.name}"
            )
        checks += _check_range(uncast, dtype, layer)
    refuse_other_than_integers(ids, layer)
    checks += _check_range(ids, tf.int64, layer)
    if not checks and ids.dtype == tf.int64:
        return ids
    with tf.control_dependencies(checks):
        return tf.identity(ids) if ids.dtype == tf.int64 else tf.cast(ids, tf.int64)


def _check_range(ids: tf.Tensor, dtype: tf.DType, layer: str) -> list[tf.Operation]:
    """Returns checks that no id is out of the range of `dtype`; an eager check raises. Empty if all ids must fit."""
    low, high = max(ids.dtype.min, dtype.min), min(ids.dtype.max, dtype.max)
    if (low, high) == (ids.dtype.min, ids.dtype.max):
        return []
    first, last = f"-2**{low.bit_length() - 1}" if low else "0", f"2**{high.bit_length()} - 1"
    check = tf.debugging.Assert(
        tf.reduce_all((ids >= tf.constant(low, ids.dtype)) & (ids <= tf.constant(high, ids.dtype))),
        [f"layer {layer!r}: ids must be {first} .. {last}. Received:", tf.reduce_min(ids), "to", tf.reduce_max(ids)],
    )
    return [] if check is None else [check]


def dense_ids(ids: Any, layer: str) -> tf.Tensor | tf.RaggedTensor:
    """Converts ids to int64. A sparse tensor becomes dense, with id 0 where it has no value, as in Keras."""
    if isinstance(ids, tf.SparseTensor):
        sparse = tf.SparseTensor(ids.indices, to_int64(ids.values, layer), ids.dense_shape)
        dense = tf.sparse.to_dense(tf.sparse.reorder(sparse))
        dense.set_shape(ids.shape)
        return dense
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(to_int64(ids.flat_values, layer))
    return to_int64(tf.convert_to_tensor(ids), layer)
