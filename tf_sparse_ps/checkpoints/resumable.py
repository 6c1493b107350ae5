"""`ResumableDataset`: in each epoch, a dataset of the batches that have not been trained yet."""

from __future__ import annotations

import collections
import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps._compat import _tensorflow
from tf_sparse_ps.checkpoints.position import Position
from tf_sparse_ps.node import activity

Make = Callable[[int], tf.data.Dataset]

_KEPT_EPOCHS = 2
_REPORT_EVERY = 8  # batches
_numbers = itertools.count()
_by_number: weakref.WeakValueDictionary[int, ResumableDataset] = weakref.WeakValueDictionary()


class ResumableDataset:
    """The batches of a job's epochs, which a function makes for each epoch.

    Attributes:
      dataset: Each pass over it has the batches of the epoch that training is then in, without those that an earlier
        run has trained. It needs this object.
      passes: How many passes over the dataset have begun.
    """

    def __init__(self, make: Make, position: Position) -> None:
        """Calls `make(0)`, for the types of the batches.

        Args:
          make: Returns the batches of an epoch: the same ones, in the same order, whenever it is called with the epoch.
          position: Where training is.

        Raises:
          TypeError: `make(0)` is not a dataset.
        """
        self._make, self._position = make, position
        self._spec = _dataset(make, 0).element_spec
        # An iterator needs its dataset's Python objects. The iterator of an epoch may still be there when the next
        # epoch begins.
        self._kept: collections.deque[tf.data.Dataset] = collections.deque(maxlen=_KEPT_EPOCHS)
        self.passes = 0
        number = next(_numbers)
        _by_number[number] = self
        spec = self._spec

        def open_epoch(number: tf.Tensor) -> tf.data.Dataset:
            return tf.data.experimental.from_variant(_open_function()(number), spec)

        self.dataset = tf.data.Dataset.from_tensors(tf.constant(number, tf.int64)).flat_map(open_epoch)
        _count_what_loops_take(self.dataset, position)

    def batches(self, epoch: int) -> int | None:
        """Returns the number of batches of an epoch. None: the dataset does not tell.

        Raises:
          ValueError: The dataset is infinite.
        """
        cardinality = int(_dataset(self._make, epoch).cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                f"make({epoch}) must return the batches of one epoch. Received: a dataset without end; "
                "take(number of batches) gives it one"
            )
        return None if cardinality == tf.data.UNKNOWN_CARDINALITY else cardinality

    def has_more(self, epoch: int, batch: int) -> bool:
        """Whether an epoch has a batch of this number, from 0 on."""
        n = self.batches(epoch)
        if n is not None:
            return batch < n
        return any(True for _ in _dataset(self._make, epoch).skip(batch).take(1))

    def _open(self) -> tf.Tensor:
        """Begins a pass: returns what is left of the epoch, as a variant tensor."""
        self.passes += 1
        self._position.count(None)  # nobody counts this pass, unless a Python loop does
        epoch, batch = self._position.epoch, self._position.first_batch
        dataset = _dataset(self._make, epoch)
        if dataset.element_spec != self._spec:
            raise ValueError(
                f"make({epoch}) must return batches like those of make(0), {self._spec}. Received: "
                f"{dataset.element_spec}"
            )
        if batch:
            dataset = _skip(dataset, batch)
        self._kept.append(dataset)
        return tf.data.experimental.to_variant(dataset)


def _skip(dataset: tf.data.Dataset, n_batches: int) -> tf.data.Dataset:
    """Skips batches by reading them. That may take long, so this rank reports its progress to the others."""

    def report(index: tf.Tensor, batch: Any) -> Any:
        _report_function()(index, tf.constant(n_batches, tf.int64))
        return batch

    return dataset.enumerate().map(report).skip(n_batches)


@functools.cache
def _report_function() -> Any:
    """Returns a function of the number of a batch, and of the first one that is not skipped. All datasets share it."""

    def report_progress() -> np.int64:
        activity.progress()
        return np.int64(0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)] * 2, autograph=False)
    def report(index: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            (index < end) & (index % _REPORT_EVERY == 0),
            lambda: tf.numpy_function(report_progress, [], tf.int64),
            lambda: tf.constant(0, tf.int64),
        )

    with tf.init_scope():
        return report.get_concrete_function()


def _count_what_loops_take(dataset: tf.data.Dataset, position: Position) -> None:
    """Lets Python loops over a dataset count the batches that they take."""

    def begin() -> Callable[[], None]:
        taken = itertools.count(1)
        return lambda: position.count(next(taken))

    _tensorflow.watch_loops(dataset, begin)


@functools.cache
def _open_function() -> Any:
    """Returns a function from the number of a `ResumableDataset` to what is left of its epoch.

    TensorFlow keeps each Python function of a graph as long as the process lives. So all datasets share one, and it
    holds none of them.
    """

    def open_numbered(number: tf.Tensor) -> tf.Tensor:
        return _by_number[int(number)]._open()

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    def open_epoch(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(open_numbered, [number], tf.variant), [])

    with tf.init_scope():
        return open_epoch.get_concrete_function()


def _dataset(make: Make, epoch: int) -> tf.data.Dataset:
    dataset = make(epoch)
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"make({epoch}) must return a tf.data.Dataset of batches. Received: {type(dataset).__name__}")
    return dataset
