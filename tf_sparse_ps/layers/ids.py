"""Ids as lookups take them: int64, checked. Strings become their fingerprints."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps._compat import _keras_inputs
from tf_sparse_ps.keys import fingerprint
from tf_sparse_ps.table.arrays import Keys


def refuse_other_types(ids: Any, layer: str, *, bounded: bool) -> None:
    """Raises ValueError if a layer cannot take ids of this type.

    Args:
      ids: A tensor, or a symbolic tensor of Keras.
      layer: The name of the layer.
      bounded: Whether the vocabulary is bounded, so that only integers are ids. Otherwise, strings are ids, too.
    """
    dtype = tf.as_dtype(ids.dtype)
    if dtype.is_integer and not dtype.is_quantized:
        return
    if dtype == tf.string:
        if not bounded:
            return
        raise ValueError(
            f"layer {layer!r}: ids must be integers, because the vocabulary is bounded (input_dim, key_limit). Number "
            "the strings by a keras.layers.StringLookup before the layer, or use an unbounded vocabulary, which takes "
            "strings. Received: inputs of dtype string"
        )
    raise ValueError(
        f"layer {layer!r}: ids must be integers{'' if bounded else ' or strings'}. Floats would merge ids. A model's "
        "input is float32 unless you use keras.Input(shape, dtype='int64'). "
        f"Received: inputs of dtype {dtype.name}"
    )


def to_int64(ids: tf.Tensor, layer: str, *, bounded: bool) -> tf.Tensor:
    """Converts ids to int64. No integer is truncated.

    Args:
      ids: Integers or strings of any shape.
      layer: The name of the layer, for messages.
      bounded: See `refuse_other_types`.

    Raises:
      ValueError: The layer cannot take ids of this type, or of the type that they had before Keras cast them to that of
        a `keras.Input`.
      InvalidArgumentError (TensorFlow's): An id does not fit the type it is cast to; raised when the graph runs.
    """
    checks = []
    for uncast, dtype in _keras_inputs.cast_for_input(ids):
        if not uncast.dtype.is_integer or dtype == tf.string:
            raise ValueError(
                f"layer {layer!r}: ids must be integers{'' if bounded else ' or strings'}. The model was given "
                f"{uncast.dtype.name}, which Keras has cast to the {dtype.name} of its keras.Input. "
                f"{_remedy(uncast.dtype, bounded)}. Received: inputs of dtype {uncast.dtype.name}"
            )
        checks += _check_range(uncast, dtype, layer)
    refuse_other_types(ids, layer, bounded=bounded)
    if ids.dtype == tf.string:
        return fingerprints(ids)
    checks += _check_range(ids, tf.int64, layer)
    if not checks and ids.dtype == tf.int64:
        return ids
    with tf.control_dependencies(checks):
        return tf.identity(ids) if ids.dtype == tf.int64 else tf.cast(ids, tf.int64)


def _remedy(dtype: tf.DType, bounded: bool) -> str:
    """Returns what helps if a model was given this type, and Keras has cast it."""
    if dtype == tf.string and bounded:
        return "Number the strings by a keras.layers.StringLookup"
    if dtype == tf.string or dtype.is_integer:
        return f"Use keras.Input(shape, dtype='{dtype.name}')"
    return "Floats from 2**24 on would merge ids. Pass integers, for example ids.astype('int64')"


def fingerprints(strings: tf.Tensor) -> tf.Tensor:
    """Returns the keys of strings, int64 of the same shape, by stock ops. `tf_sparse_ps.keys` has the same function."""
    flat = tf.bitcast(tf.fingerprint(tf.reshape(strings, [-1])), tf.int64)
    keys = tf.reshape(flat, tf.shape(strings))
    keys.set_shape(strings.shape)
    return keys


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


def dense_ids(ids: Any, layer: str, *, bounded: bool) -> tf.Tensor | tf.RaggedTensor:
    """Converts ids to int64. A sparse tensor becomes dense: see `dense`."""
    if isinstance(ids, tf.SparseTensor):
        refuse_other_types(ids, layer, bounded=bounded)
        if ids.dtype != tf.string:  # the zeros of absent entries are in the range of every type
            ids = tf.SparseTensor(ids.indices, to_int64(ids.values, layer, bounded=bounded), ids.dense_shape)
        ids = dense(ids)
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(to_int64(ids.flat_values, layer, bounded=bounded))
    return to_int64(tf.convert_to_tensor(ids), layer, bounded=bounded)


def dense(ids: tf.SparseTensor) -> tf.Tensor:
    """Returns a dense tensor, with id 0 or the empty string where the sparse one has no value, as in Keras."""
    result = tf.sparse.to_dense(tf.sparse.reorder(ids))
    result.set_shape(ids.shape)
    return result


def unique_keys(ids: Any, layer: str, *, limit: int | None) -> Keys:
    """Returns the keys of ids, each once, in ascending order: int64[n]. For methods that are called eagerly.

    Args:
      ids: Integers or strings of any shape; a NumPy array or what converts to one, or a dense, ragged or sparse tensor.
      layer: The name of the layer, for messages.
      limit: The number of ids of a bounded vocabulary; None: it is unbounded.

    Raises:
      ValueError: The ids have another type, or one is out of range. The message names it.
    """
    if isinstance(ids, tf.RaggedTensor | tf.SparseTensor):
        ids = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids.values
    values = ids.numpy() if tf.is_tensor(ids) else ids
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind in "SUO" and limit is None:
        try:
            # Not of `array`: NumPy makes strings of numbers beside strings, and drops zeros at the end of bytes.
            return np.unique(fingerprint(values))
        except TypeError as error:
            raise ValueError(f"layer {layer!r}: {error}") from None
    if array.dtype.kind not in "iu":
        wanted = "integers or strings" if limit is None else "integers, because the vocabulary is bounded"
        raise ValueError(f"layer {layer!r}: ids must be {wanted}. Received: ids of dtype {array.dtype.name}")
    low, high = (-(2**63), 2**63) if limit is None else (0, limit)
    for extreme in (int(array.min()), int(array.max())):
        if not low <= extreme < high:
            raise ValueError(f"layer {layer!r}: ids must be in [{low}, {high}). Received: {extreme}")
    return np.unique(array.astype(np.int64))


def padding(ids: Any) -> int | str:
    """Returns the id that `mask_zero` masks: 0, or the empty string."""
    return "" if tf.as_dtype(ids.dtype) == tf.string else 0
