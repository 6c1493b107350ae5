"""Callbacks for `fit` on several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.training import distributed_optimizer
from tf_sparse_ps.training.equal_weights import broadcast_variables

_NOT_A_NUMBER_OF_BATCHES = {
    0: "none: give every rank at least one",
    int(tf.data.INFINITE_CARDINALITY): "infinitely many: fit's steps_per_epoch makes equal steps of those by itself",
    int(tf.data.UNKNOWN_CARDINALITY): "a dataset that does not tell: "
    "dataset.apply(tf.data.experimental.assert_cardinality(n))",
}


def _agree(dataset: Any, collectives: collectives_lib.Collectives) -> tuple[int, int]:
    """Batches of this rank, and of the rank that has most. Every rank calls it; errors as of `EqualSteps`."""
    own = int(dataset.cardinality()) if isinstance(dataset, tf.data.Dataset) else None
    numbers = collectives.allgather_object(own, "tsps.steps")
    if own is None:
        raise TypeError(
            "EqualSteps takes a tf.data.Dataset of batches, "
            f"tf.data.Dataset.from_tensor_slices((x, y)).batch(n) of arrays. Received: {type(dataset).__name__}"
        )
    wrong = [
        f"rank {rank} has {'no tf.data.Dataset' if number is None else _NOT_A_NUMBER_OF_BATCHES[number]}"
        for rank, number in enumerate(numbers)
        if number is None or number <= 0
    ]
    if wrong:
        raise ValueError("EqualSteps needs to know how many batches each rank has: " + "; ".join(wrong))
    return own, max(numbers)


def _none_of(batch: Any) -> Any:
    """A part of a batch, without its samples."""
    if isinstance(batch, tf.SparseTensor):
        shape = tf.concat([[0], batch.dense_shape[1:]], 0)
        return tf.sparse.slice(batch, tf.zeros_like(shape), shape)
    return batch if batch.shape.rank == 0 else batch[:0]


class BroadcastVariables(_keras.keras.callbacks.Callback):
    """Gives all ranks rank `root`'s dense weights and optimizer variables before training.

    They are sent when training begins, or, for a model that is built by its first batch only, after that batch. Tables
    need none of it: there is one per node, and nodes get equal ones when the optimizer binds them.

    `DistributedOptimizer(broadcast=True)` does the same with rank 0's before its first step, for what it knows of.
    """

    def __init__(self, root: int = 0, *, collectives: str = "auto") -> None:
        """Sends from rank `root`."""
        super().__init__()
        self._root, self._collectives = root, collectives_lib.resolve(collectives)
        self._done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Sends, if the model is built."""
        self._done = False
        # All ranks must do the same. A model that one rank has built and another has not is sent later.
        built = self._collectives.allgather_object(bool(self.model.built), "tsps.built")
        if all(built):
            self._broadcast()
        elif isinstance(self.model.optimizer, distributed_optimizer.DistributedOptimizer):
            self.model.optimizer.begin_with(self._root)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sends, if it has not been done."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._done = True
        optimizer = self.model.optimizer
        extra = optimizer.variables if optimizer is not None else []
        broadcast_variables(
            [*self.model.weights, *(extra() if callable(extra) else extra)], self._root, self._collectives
        )


class MetricAverage(_keras.keras.callbacks.Callback):
    """Replaces the metrics at the end of an epoch by their means over the ranks.

    Put it before callbacks that act on metrics (ReduceLROnPlateau, EarlyStopping, ModelCheckpoint): they then act
    alike on all ranks. A metric that only some ranks have, because only they evaluate, is averaged over those.
    """

    def __init__(self, *, collectives: str = "auto") -> None:
        """Averages over all ranks."""
        super().__init__()
        self._collectives = collectives_lib.resolve(collectives)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages `logs` in place."""
        if logs is None:
            return
        own = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        everyone = self._collectives.allgather_object(own, "tsps.metrics")
        for name in own:
            logs[name] = float(np.mean([theirs[name] for theirs in everyone if name in theirs]))


class EqualSteps(_keras.keras.callbacks.Callback):
    """Lets ranks with different numbers of batches make the same number of steps in each epoch of `fit`.

    ```python
    equal = tsps.callbacks.EqualSteps(batches_of_this_rank)
    model.fit(equal.dataset, epochs=3, callbacks=[equal])
    ```

    A rank that has no batch left goes through its first ones again, with weight 0: they train nothing, and change no
    table (`DistributedOptimizer.rank_weight`). They do count in this rank's metrics, and in the moving statistics of
    its `BatchNormalization`. Not empty ones, because those make moving statistics NaN.

    In a custom training loop, assign the weight for each batch:

    ```python
    for i, batch in enumerate(equal.dataset):
        optimizer.rank_weight.assign(float(i < equal.own_steps))
        step(batch)
    ```

    Attributes:
      dataset: Yields `steps` batches, of which the first `own_steps` are this rank's. Transform it no more.
      own_steps: Batches of this rank.
      steps: Of the rank that has most.
    """

    def __init__(self, dataset: tf.data.Dataset, *, collectives: str = "auto") -> None:
        """Agrees with the other ranks on the number of steps. Every rank makes one.

        Args:
          dataset: The batches of this rank for one epoch, whose number must be known (`dataset.cardinality()`).
          collectives: "auto", "horovod" or "local".

        Raises:
          TypeError: `dataset` is no `tf.data.Dataset`.
          ValueError: On all ranks: the number of batches of a rank is 0, infinite or not known.
        """
        super().__init__()
        self._collectives = collectives_lib.resolve(collectives)
        self.own_steps, self.steps = _agree(dataset, self._collectives)
        self.dataset = dataset
        if self.own_steps < self.steps:
            self.dataset = dataset.repeat().take(self.steps)

    @classmethod
    def for_evaluation(cls, dataset: tf.data.Dataset, *, collectives: str = "auto") -> tf.data.Dataset:
        """The batches of this rank, and behind them empty ones, as many in all as the rank with most batches has.

        For `validation_data`, `evaluate` and `predict` of models with sharded tables, which all ranks look up together.
        Empty batches change no metric, and no prediction comes of them.

        ```python
        validation = tsps.callbacks.EqualSteps.for_evaluation(batches_of_this_rank)
        model.fit(training, validation_data=validation)
        ```

        Args:
          dataset: As of the constructor. Its first batch says what an empty one looks like.
          collectives: As there.

        Returns:
          A dataset of known cardinality, the same on all ranks.

        Raises:
          TypeError, ValueError: As the constructor.
        """
        own, steps = _agree(dataset, collectives_lib.resolve(collectives))
        if own == steps:
            return dataset
        is_tuple = isinstance(dataset.element_spec, tuple)  # which `map` passes as several arguments

        def nothing(*batch: Any) -> Any:
            return tf.nest.map_structure(_none_of, batch if is_tuple else batch[0])

        return dataset.concatenate(dataset.take(1).repeat(steps - own).map(nothing))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Looks whether `fit` was given `dataset`, on all ranks.

        Raises:
          ValueError: On all ranks: it was not; the model's optimizer is no `DistributedOptimizer`.
        """
        ours = isinstance(self.model.optimizer, distributed_optimizer.DistributedOptimizer)
        steps = self.params.get("steps")
        wrong = None
        if not ours:
            wrong = f"its model's optimizer is a {type(self.model.optimizer).__name__}, not a DistributedOptimizer"
        elif steps != self.steps:
            wrong = (
                f"fit makes {steps} steps per epoch, not {self.steps}: give it the callback's `dataset` as it is, "
                "without steps_per_epoch"
            )
        found = self._collectives.allgather_object(wrong, "tsps.steps.begin")
        if any(found):
            each = [f"on rank {rank} {text}" for rank, text in enumerate(found) if text]
            raise ValueError("EqualSteps cannot give the ranks equal steps: " + "; ".join(each))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells the optimizer after how many steps this rank has no batch left."""
        if self.own_steps < self.steps:
            optimizer = self.model.optimizer
            optimizer.weigh_until(int(tf.convert_to_tensor(optimizer.iterations)) + self.own_steps)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Gives the rank its weight back."""
        self.model.optimizer.weigh_until(None)


class Drain(_keras.keras.callbacks.Callback):
    """Applies what a schedule has outstanding before anything looks at the model: for `DelayedGlobal` in `fit`.

    At the end of each epoch, before its validation if the number of batches is known, and else when validation begins:
    then all ranks must validate, or none. Put it before callbacks that save, or change the learning rate. It also lets
    statistics of normalisation be averaged with the parameters. Under other schedules it does nothing that can be seen.
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Tells the optimizer which variables are no parameters.

        Raises:
          ValueError: The model's optimizer is no `DistributedOptimizer`.
        """
        model = self.model
        if not isinstance(model.optimizer, distributed_optimizer.DistributedOptimizer):
            raise ValueError(f"Drain needs a DistributedOptimizer. Received: {type(model.optimizer).__name__}")
        model.optimizer.also_average(lambda: model.non_trainable_variables)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Drains after the epoch's last batch."""
        if batch + 1 == self.params.get("steps"):
            self.model.optimizer.drain()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Drains before validation."""
        self.model.optimizer.drain()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Drains."""
        self.model.optimizer.drain()
