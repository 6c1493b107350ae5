"""`EqualSteps`: ranks with different numbers of batches make the same number of steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps._compat import _keras, _keras_fit
from tf_sparse_ps.collectives.all_or_none import raising_on_all
from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer, step_builder_of

_UNUSABLE_CARDINALITIES = {
    0: "none: give every rank at least one",
    int(tf.data.INFINITE_CARDINALITY): "infinitely many: fit's steps_per_epoch makes equal steps of those by itself",
    int(tf.data.UNKNOWN_CARDINALITY): "a dataset that does not tell: "
    "dataset.apply(tf.data.experimental.assert_cardinality(n))",
}


class EqualSteps(_keras.keras.callbacks.Callback):
    """Makes the same number of steps per epoch on ranks that have different numbers of batches.

    ```python
    equal_steps = tsps.callbacks.EqualSteps(batches_of_this_rank)
    model.fit(equal_steps.dataset, epochs=3, callbacks=[equal_steps])
    ```

    A rank that has no batch left repeats its first batches with weight 0 (`DistributedOptimizer.rank_weight`). Repeated
    batches train nothing and change no table. They do count in this rank's metrics and in the moving statistics of its
    `BatchNormalization` layers. The callback does not use empty batches for this, because those make moving statistics
    NaN.

    In a custom training loop, assign the weight for each batch:

    ```python
    for i, batch in enumerate(equal_steps.dataset):
        optimizer.rank_weight.assign(float(i < equal_steps.own_steps))
        train_step(batch)
    ```

    Attributes:
      dataset: A `tf.data.Dataset` of `steps` batches. The first `own_steps` of them are this rank's. Give it to `fit`
        without further transformations.
      own_steps: The number of this rank's batches.
      steps: The number of batches of the rank that has most.
    """

    def __init__(self, dataset: tf.data.Dataset, *, collectives: str = "auto") -> None:
        """Agrees with the other ranks on the number of steps. Every rank makes the callback.

        Args:
          dataset: This rank's batches of one epoch. `dataset.cardinality()` must be known.
          collectives: "auto", "horovod", "tensorflow" or "local": how the ranks talk to each other.

        Raises:
          TypeError: `dataset` is not a `tf.data.Dataset`.
          ValueError: On all ranks: the number of batches of one rank is 0, infinite or unknown.
        """
        super().__init__()
        self._collectives = collectives_lib.resolve(collectives)
        self.own_steps, self.steps = _count_batches(dataset, self._collectives)
        self.dataset = dataset
        if self.own_steps < self.steps:
            self.dataset = dataset.repeat().take(self.steps)

    @classmethod
    def for_evaluation(cls, dataset: tf.data.Dataset, *, collectives: str = "auto") -> tf.data.Dataset:
        """Appends empty batches to this rank's, until all ranks have equally many. Every rank calls it.

        Use it for `validation_data`, `evaluate` and `predict` of models with sharded tables: all ranks look up the rows
        of such tables together. Empty batches change no metric and yield no prediction.

        ```python
        validation = tsps.callbacks.EqualSteps.for_evaluation(batches_of_this_rank)
        model.fit(training, validation_data=validation)
        ```

        Args:
          dataset: This rank's batches. `dataset.cardinality()` must be known. Empty batches have the structure of its
            first batch.
          collectives: "auto", "horovod", "tensorflow" or "local": how the ranks talk to each other.

        Returns:
          A `tf.data.Dataset` of the same known cardinality on all ranks.

        Raises:
          TypeError: `dataset` is not a `tf.data.Dataset`.
          ValueError: On all ranks: the number of batches of one rank is 0, infinite or unknown.
        """
        own_steps, steps = _count_batches(dataset, collectives_lib.resolve(collectives))
        if own_steps == steps:
            return dataset
        is_tuple = isinstance(dataset.element_spec, tuple)  # which `map` passes as several arguments

        def empty(*batch: Any) -> Any:
            return tf.nest.map_structure(_without_samples, batch if is_tuple else batch[0])

        return dataset.concatenate(dataset.take(1).repeat(steps - own_steps).map(empty))

    def _settings_of_fit(self) -> dict[str, Any]:
        """Returns what ranks compare when `fit` begins: see `training/fits.py`."""
        return {"steps": self.steps}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that `fit` was given `dataset`.

        Raises:
          ValueError: On all ranks: `fit` makes another number of steps on one rank, or the model's optimizer is not a
            `DistributedOptimizer`.
        """
        optimizer = self.model.optimizer
        with raising_on_all(self._collectives, "beginning fit with EqualSteps", "tsps.steps.begin", ValueError):
            if not isinstance(optimizer, DistributedOptimizer):
                raise ValueError(
                    "EqualSteps needs a model whose optimizer is a DistributedOptimizer. Received: "
                    f"{type(optimizer).__name__}"
                )
            if (steps := self.params.get("steps")) != self.steps:
                raise ValueError(
                    f"fit makes {steps} steps per epoch, not the {self.steps} of EqualSteps. Give fit the callback's "
                    "`dataset` as it is, without steps_per_epoch"
                )
        _keras_fit.at_end(lambda: step_builder_of(optimizer).weight.only_until(None))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Gives this rank weight 0 in the steps of the epoch for which it has no batch of its own."""
        if self.own_steps < self.steps:
            optimizer = self.model.optimizer
            # One call for an epoch, however many steps a call of TensorFlow makes.
            end = int(tf.convert_to_tensor(optimizer.iterations)) + self.own_steps
            step_builder_of(optimizer).weight.only_until(end)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Gives this rank its weight back. `fit` also does that when an exception ends it."""
        step_builder_of(self.model.optimizer).weight.only_until(None)


def _count_batches(dataset: Any, collectives: collectives_lib.Collectives) -> tuple[int, int]:
    """Returns the number of this rank's batches, and that of the rank that has most. Every rank calls it.

    Raises:
      TypeError: `dataset` is not a `tf.data.Dataset`.
      ValueError: On all ranks: the number of batches of one rank is 0, infinite or unknown.
    """
    own_number = int(dataset.cardinality()) if isinstance(dataset, tf.data.Dataset) else None
    numbers = collectives.allgather_object(own_number, "tsps.steps")
    if own_number is None:
        raise TypeError(
            "EqualSteps takes a tf.data.Dataset of batches, "
            f"tf.data.Dataset.from_tensor_slices((x, y)).batch(n) of arrays. Received: {type(dataset).__name__}"
        )
    objections = [
        f"rank {rank} has {'no tf.data.Dataset' if number is None else _UNUSABLE_CARDINALITIES[number]}"
        for rank, number in enumerate(numbers)
        if number is None or number <= 0
    ]
    if objections:
        raise ValueError("EqualSteps needs to know how many batches each rank has: " + "; ".join(objections))
    return own_number, max(numbers)


def _without_samples(component: Any) -> Any:
    """Returns a component of a batch, such as its labels, with the same shape but for 0 samples."""
    if isinstance(component, tf.SparseTensor):
        shape = tf.concat([[0], component.dense_shape[1:]], 0)
        return tf.sparse.slice(component, tf.zeros_like(shape), shape)
    return component if component.shape.rank == 0 else component[:0]
