"""`batches_of`: a function from an epoch to its batches, from each form of data that `Checkpoint.dataset` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints.resumable import Make
from tf_sparse_ps.config.plain_numbers import check_integer, plain

_BATCH_SIZE = 32  # Keras's
_MOST = 2**63 - 1


def batches_of(x: Any, y: Any, sample_weight: Any, batch_size: int | None, shuffle: bool, seed: int) -> Make:
    """Returns a function that makes the batches of an epoch. The arguments are those of `Checkpoint.dataset`.

    Raises:
      TypeError: A form of `x` is not supported, or arrays cannot be made tensors.
      ValueError: An argument has no effect on this form of `x`, or arrays have different lengths.
    """
    batch_size, seed = plain(batch_size), plain(seed)
    if not isinstance(shuffle, bool | np.bool_):
        raise ValueError(f"`shuffle` must be True or False. Received: shuffle={shuffle!r}")
    is_dataset = isinstance(x, tf.data.Dataset)
    if is_dataset or callable(x):
        arguments = {
            "y": y,
            "sample_weight": sample_weight,
            "batch_size": batch_size,
            "shuffle": shuffle or None,
            "seed": seed or None,
        }
        if given := [name for name, value in arguments.items() if value is not None]:
            raise ValueError(
                f"a {'tf.data.Dataset' if is_dataset else 'function that makes datasets'} already has its batches and "
                f"their order: the arguments {given} are for arrays. Batch and shuffle in the dataset, by a seed that "
                "depends on the epoch, and leave them out"
            )
        return _the_same_dataset(x) if is_dataset else x
    check_integer("seed", seed, 0, _MOST)
    size = _BATCH_SIZE if batch_size is None else batch_size
    check_integer("batch_size", size, 1, _MOST)
    if sample_weight is not None and y is None:
        raise ValueError("`sample_weight` was given without `y`: Keras would ignore it. Give both, or neither")
    return _of_arrays({"x": x, "y": y, "sample_weight": sample_weight}, size, bool(shuffle), seed)


def _the_same_dataset(dataset: tf.data.Dataset) -> Make:
    """Returns a function that returns `dataset` for every epoch."""
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "a tf.data.Dataset for checkpoint.dataset must have the batches of one epoch. Received: a dataset without "
            "end; take(number of batches) gives it one"
        )

    def make(epoch: int) -> tf.data.Dataset:
        del epoch
        return dataset

    return make


def _of_arrays(arrays: Mapping[str, Any], batch_size: int, shuffle: bool, seed: int) -> Make:
    """Returns a function that makes datasets of the batches of arrays; see `batches_of`."""
    tensors = {
        name: tf.nest.map_structure(lambda leaf, name=name: _tensor(name, leaf), _without_lists(name, value))
        for name, value in arrays.items()
        if value is not None
    }
    lengths = {f"{name}[{i}]": _samples(leaf) for name in tensors for i, leaf in enumerate(_leaves(tensors[name]))}
    n = next(iter(lengths.values()), 0)
    if any(length != n for length in lengths.values()) or n == 0:
        raise ValueError(f"all arrays must have the same number of samples, at least 1. Received: {lengths}")
    # Keras takes a tuple for x, y and sample_weight. So a tuple of inputs alone becomes the first of one.
    structure: Any = tuple(tensors.values())
    if len(tensors) == 1 and not isinstance(tensors["x"], tuple):
        structure = tensors["x"]

    def make(epoch: int) -> tf.data.Dataset:
        order = np.random.default_rng([seed, epoch]).permutation(n) if shuffle else np.arange(n)
        batches = tf.data.Dataset.from_tensor_slices(order).batch(batch_size)
        return batches.map(lambda rows: tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), structure))

    return make


def _samples(leaf: Any) -> int:
    """Returns the number of samples of a tensor or ragged tensor."""
    return int(leaf.nrows()) if isinstance(leaf, tf.RaggedTensor) else int(leaf.shape[0])


def _leaves(structure: Any) -> list[Any]:
    return list(tf.nest.flatten(structure))


def _without_lists(name: str, value: Any) -> Any:
    """Returns a structure of arrays as it is, and refuses lists, which may be one array or several."""
    if isinstance(value, list):
        raise TypeError(
            f"`{name}` is a list, which may be one array or several. Give one array as np.asarray(...), several ones "
            "as a tuple or a dict"
        )
    if isinstance(value, tuple):
        return tuple(_without_lists(name, item) for item in value)
    if isinstance(value, Mapping):
        return {key: _without_lists(name, item) for key, item in value.items()}
    return value


def _tensor(name: str, value: Any) -> Any:
    """Returns an array as a tensor. Numbers of 64 bits become Keras's floatx, as in `fit`.

    Raises:
      TypeError: `value` is no array of at least one dimension.
    """
    if isinstance(value, tf.SparseTensor):
        raise TypeError(f"`{name}` has a SparseTensor. Give tf.sparse.to_dense(...) or a tf.RaggedTensor")
    if isinstance(value, tf.RaggedTensor):
        return value
    with tf.device("CPU"):
        try:
            tensor = tf.convert_to_tensor(value if isinstance(value, tf.Tensor | tf.Variable) else np.asarray(value))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"`{name}` must be an array, or a tuple or dict of arrays; checkpoint.dataset also takes a "
                f"tf.data.Dataset, or a function make(epoch) that returns one. Received: {type(value).__name__} "
                f"({error})"
            ) from None
        if tensor.shape.rank == 0:
            raise TypeError(
                f"`{name}` must be an array with one row per sample. Received: {type(value).__name__} without a "
                "dimension"
            )
        return tf.cast(tensor, _keras.keras.backend.floatx()) if tensor.dtype == tf.float64 else tensor
