"""Callbacks for `fit` on several ranks."""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps import job, schedules
from tf_sparse_ps._compat import _keras, _keras_fit, _tensorflow
from tf_sparse_ps.checkpoints.callback_states import CallbackStates, refuse_order
from tf_sparse_ps.checkpoints.checkpointer import Checkpointer, check_arguments
from tf_sparse_ps.checkpoints.position import Position
from tf_sparse_ps.checkpoints.resumable import Make, ResumableDataset
from tf_sparse_ps.config.plain_numbers import plain
from tf_sparse_ps.errors import NotSavedError, StateError, UnsupportedError
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.reduction.handshake import reconcile
from tf_sparse_ps.training import distributed_optimizer, fits
from tf_sparse_ps.training.initial_sync import broadcast_variables

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
    """Gives all ranks rank `root`'s dense weights, optimizer variables and tables before training.

    They are sent when training begins, or, for a model that is built by its first batch only, after that batch. Of
    replicated tables the rows and slots of that rank's machine are sent to the others, if ranks have written different
    ones. Sharded tables are left as they are.

    `DistributedOptimizer(broadcast=True)` does the same with rank 0's before its first step, for what it knows of.
    """

    def __init__(self, root: int = 0, *, collectives: str = "auto") -> None:
        """Sends from rank `root`."""
        super().__init__()
        self._root, self._collectives = root, collectives_lib.resolve(collectives)
        self._done = False

    def settings_of_fit(self) -> dict[str, Any]:
        """What ranks compare when `fit` begins: see `training/fits.py`."""
        return {"root": self._root}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Sends, if the model is built."""
        self._done = False
        # All ranks must do the same. A model that one rank has built and another has not is sent later.
        built = self._collectives.allgather_object(bool(self.model.built), "tsps.built")
        if all(built):
            self._broadcast()
        elif isinstance(self.model.optimizer, distributed_optimizer.DistributedOptimizer):
            self.model.optimizer.begin_with(self._root)
            _keras_fit.at_end(lambda: self.model.optimizer.begin_with(0))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sends, if it has not been done."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._done = True
        optimizer = self.model.optimizer
        extra = optimizer.variables if optimizer is not None else []
        weights = self.model.weights
        broadcast_variables([*weights, *(extra() if callable(extra) else extra)], self._root, self._collectives)
        tables = {table.path: table for one in weights if (table := binding_of(one)) is not None}
        if tables and self._collectives.size > 1:
            in_order = sorted(tables.values(), key=lambda table: table.ordinal)
            reconcile(self._collectives, job.current(), in_order, self._root)


class MetricAverage(_keras.keras.callbacks.Callback):
    """Replaces the metrics at the end of an epoch by their means over the ranks.

    Put it before callbacks that act on metrics (ReduceLROnPlateau, EarlyStopping, ModelCheckpoint): they then act
    alike on all ranks. A metric that only some ranks have, because only they evaluate, is averaged over those.
    """

    def __init__(self, *, collectives: str = "auto") -> None:
        """Averages over all ranks."""
        super().__init__()
        self._collectives = collectives_lib.resolve(collectives)

    def settings_of_fit(self) -> dict[str, Any]:
        """What ranks compare when `fit` begins: see `training/fits.py`."""
        return {}

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

    def settings_of_fit(self) -> dict[str, Any]:
        """What ranks compare when `fit` begins: see `training/fits.py`."""
        return {"steps": self.steps}

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
        optimizer = self.model.optimizer
        _keras_fit.at_end(lambda: optimizer.weigh_until(None))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells the optimizer after how many steps this rank has no batch left."""
        if self.own_steps < self.steps:
            optimizer = self.model.optimizer
            optimizer.weigh_until(int(tf.convert_to_tensor(optimizer.iterations)) + self.own_steps)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Gives the rank its weight back: in `fit` that is done at its end anyway, also after an exception."""
        self.model.optimizer.weigh_until(None)


class Drain(_keras.keras.callbacks.Callback):
    """Applies what a schedule has outstanding before anything looks at the model: for `DelayedGlobal` in `fit`.

    At the end of each epoch, before its validation if the number of batches is known, and else when validation begins:
    then all ranks must validate, or none. Put it before callbacks that save, or change the learning rate. It also lets
    statistics of normalisation be averaged with the parameters. Under other schedules it does nothing that can be seen.
    """

    def settings_of_fit(self) -> dict[str, Any] | None:
        """What ranks compare when `fit` begins: see `training/fits.py`."""
        schedule = getattr(self.model.optimizer, "schedule", None)
        return {} if isinstance(schedule, schedules.DelayedGlobal) else None

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


_DATASETS: weakref.WeakSet[tf.data.Dataset] = weakref.WeakSet()  # of all `Checkpoint`s


class Checkpoint(_keras.keras.callbacks.Callback):
    """Saves checkpoints in `fit`, and goes on from the newest one when the same program is started again.

    ```python
    checkpoint = tsps.callbacks.Checkpoint("/shared/checkpoints", every_steps=1000)
    model.fit(checkpoint.dataset(make), epochs=10, callbacks=[checkpoint])  # make(epoch) returns its batches
    ```

    When training begins, the newest whole checkpoint is restored, and `fit` begins with the batch behind it; without
    one, one is saved. Every rank has the callback. A save that fails is a warning, and training goes on; only the first
    one must work. Put it behind callbacks that change the model or the learning rate, and behind those whose state it
    carries: EarlyStopping, ReduceLROnPlateau, ModelCheckpoint, and any that has `get_state()` and `set_state(state)`.
    See `tsps.Checkpointer` and docs/checkpoints.md.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 3,
        incremental: bool = True,
        background: bool = True,
        per_node: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Reads and writes nothing.

        Args:
          directory: Of the checkpoints; all machines see it, but with `per_node`.
          every_steps: Save when so many steps have been made, and when `fit` ends.
          every_seconds: Save when so much time has passed on rank 0, and when `fit` ends. Ranks agree on when every few
            steps.
          keep: How many checkpoints stay, at least 1; with them stays what they build on.
          incremental: Save of tables what has changed since the checkpoint before, as `tsps.Checkpointer`.
          background: Write beside the training that goes on, as `tsps.Checkpointer`.
          per_node: Every machine has a directory of its own at this path, as `tsps.Checkpointer`.
          extra: Variables that are saved with them, by name.

        Raises:
          TypeError: An extra is no variable.
          ValueError: Not one of `every_steps` and `every_seconds` is given, or it is not above 0; `keep` is no positive
            integer; the directory is no local path.
        """
        super().__init__()
        every_steps, every_seconds, keep = plain(every_steps), plain(every_seconds), plain(keep)
        if (every_steps is None) == (every_seconds is None):
            raise ValueError(
                "Checkpoint needs one of `every_steps` and `every_seconds`. Received: "
                f"every_steps={every_steps!r}, every_seconds={every_seconds!r}"
            )
        if every_steps is not None and (not isinstance(every_steps, int) or isinstance(every_steps, bool)):
            raise ValueError(f"`every_steps` must be an integer. Received: every_steps={every_steps!r}")
        if isinstance(every_seconds, bool) or not isinstance(every_seconds, int | float | None):
            raise ValueError(f"`every_seconds` must be a number of seconds. Received: every_seconds={every_seconds!r}")
        if not (every_steps or every_seconds or 0) > 0:
            name, value = ("every_steps", every_steps) if every_seconds is None else ("every_seconds", every_seconds)
            raise ValueError(f"`{name}` must be above 0. Received: {name}={value!r}")
        check_arguments(directory, keep, extra)
        self._directory = directory
        self._options: dict[str, Any] = {
            "keep": keep,
            "incremental": incremental,
            "background": background,
            "per_node": per_node,
            "extra": dict(extra or {}),
        }
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._position = Position(self._iterations)
        self._resumable: ResumableDataset | None = None
        self._checkpointer: Checkpointer | None = None
        self._made = 0  # updates when it was last looked whether to save
        self._clock: _Clock | None = None
        self._batches: int | None = None  # of this epoch
        self._begun = 0  # how often the dataset had been gone through before this epoch
        self._due = False  # a save is to be made when the epoch has ended
        self._others: list[Any] = []  # callbacks of the fit
        self._restored = False  # callbacks are to get their states when the epoch has begun

    def dataset(self, make: Make) -> tf.data.Dataset:
        """The batches of the epoch that `fit` is in, but those that were trained before: `Checkpointer.dataset`.

        Args:
          make: Called with an epoch, from 0 on, returns a `tf.data.Dataset` of its batches, for this rank. The same
            epoch must give the same batches in the same order, and all ranks must have equally many.
        """
        self._resumable = ResumableDataset(make, self._position)
        _DATASETS.add(self._resumable.dataset)
        return self._resumable.dataset

    def settings_of_fit(self) -> dict[str, Any]:
        """What ranks compare when `fit` begins: see `training/fits.py`."""
        extra = sorted(self._options["extra"])
        return {**self._options, "extra": extra, "every_steps": self._every_steps, "every_seconds": self._every_seconds}

    def begins_beside(self, callbacks: Sequence[Any]) -> None:
        """Is told the other callbacks of the `fit` that begins. Their states are saved."""
        self._others = list(callbacks)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the newest checkpoint, or saves the first one.

        Raises:
          ValueError: On all ranks: `fit` was not given `dataset(make)`; or as `Checkpointer.restore`.
          StateError: As `Checkpointer.restore`.
          NotSavedError: The first checkpoint could not be saved.
        """
        if self._checkpointer is None:
            own = Checkpointer(self._directory, self.model, self.model.optimizer, **self._options)
            own.position = self._position
            self._refuse_other_input(own)
            own.carry(CallbackStates(self._others))
            self._restored = own.restore() is not None
            if not self._restored:
                self._position.go_to(0, 0)
                own.save()
                own.wait()
            self._checkpointer = own
        else:  # an exception may have ended the fit before within an epoch
            self._checkpointer.must_be_of(self.model, self.model.optimizer)
            self._checkpointer.carry(CallbackStates(self._others))
            self._position.go_to(self._position.epoch, self._position.batch)
        if self._position.batch:
            self._go_to_next_batch()
        self._made, self._due = self._iterations(), False
        if self._every_seconds is not None:
            self._clock = _Clock(self._every_seconds, self._checkpointer.ranks, self._made)
        epochs = self.params.get("epochs") or 0
        begin = self._position.epoch
        # In mid-epoch what others do when it begins is done, and is in the checkpoint.
        if self._restored and not (self._position.batch and begin < epochs):
            self._restored = False
            if self._checkpointer.restore_callbacks():
                begin = max(begin, epochs)
                if self._checkpointer.ranks.rank == 0:
                    print(
                        f"tf_sparse_ps: EarlyStopping has ended training after epoch {self._position.epoch}",
                        file=sys.stderr,
                    )
        _keras_fit.at_end(lambda: _keras_fit.end(self.model))
        _keras_fit.begin_at_epoch(self.model, begin)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells `fit` how many batches are left, and compares that on all ranks.

        Raises:
          ValueError: On all ranks: they have different numbers of batches.
        """
        assert self._checkpointer is not None
        assert self._resumable is not None
        if epoch != self._position.epoch:  # fit's initial_epoch
            self._position.go_to(epoch, 0)
        batch, self._batches = self._position.batch, self._resumable.batches(epoch)
        everyone = self._checkpointer.ranks.allgather_object(self._batches, "tsps.checkpoint.batches")
        if len(set(everyone)) > 1:
            raise ValueError(
                f"ranks have different numbers of batches in epoch {epoch}, {everyone}: they would wait for each other "
                "at its end. take() as many as the one with fewest has"
            )
        _keras_fit.begin_epoch(self.model, batch, self._batches)
        # Those of an epoch that has ended are none of the one that begins.
        self._checkpointer.restore_metrics(self._resumable.dataset.element_spec if batch else None)
        if self._restored:
            self._restored = False
            self._checkpointer.restore_callbacks()
        self._begun = self._resumable.begun

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, if it is time to.

        Raises:
          ValueError: `fit` goes through another dataset.
        """
        assert self._resumable is not None
        if self._resumable.begun == self._begun:
            raise ValueError(
                "fit goes through another dataset than the callback's: give it checkpoint.dataset(make), or "
                "tsps.lookahead around it"
            )
        if not self._is_time():
            return
        if self._batches is not None and self._position.batch >= self._batches:
            self._due = True  # after what else is done at the end of the epoch
        else:
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, if it was time to at the epoch's last batch, or this is the last epoch."""
        if not self._ended_early(epoch):
            self._position.end_epoch()
        assert self._checkpointer is not None
        if self._checkpointer.unsaved:  # in the last epoch before others change the model because training has ended
            wanted = self._due or self.model.stop_training or epoch + 1 == self.params.get("epochs")
        else:  # what is saved of this step is from before the end of the epoch
            wanted = self._due or self._checkpointer.carries_states
        if wanted:
            self._due = False
            self._save()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits for the save in progress, and saves what was trained since the last checkpoint."""
        _keras_fit.end(self.model)
        if self._checkpointer is None:
            return
        self._try(self._checkpointer.wait)
        if self._checkpointer.unsaved:
            self._try(self._checkpointer.save)
            self._try(self._checkpointer.wait)

    def _ended_early(self, epoch: int) -> bool:
        """Whether training was ended before the epoch's last batch: a restart goes on there."""
        assert self._resumable is not None
        return bool(self.model.stop_training) and self._resumable.has_more(epoch, self._position.batch)

    def _iterations(self) -> int:
        model = getattr(self, "model", None)
        return 0 if model is None else int(tf.convert_to_tensor(model.optimizer.iterations))

    def _is_time(self) -> bool:
        before, self._made = self._made, self._iterations()
        if self._every_steps is not None:
            return before // self._every_steps != self._made // self._every_steps
        assert self._clock is not None
        return self._clock.is_time(self._made)

    def _save(self) -> None:
        assert self._checkpointer is not None
        self._try(self._checkpointer.wait)  # an error of the save before does not keep this one from beginning
        self._try(self._checkpointer.save)

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except NotSavedError as error:  # on all ranks
            warnings.warn(f"{error}. Training goes on, and the next save is tried", stacklevel=3)

    def _refuse_other_input(self, checkpointer: Checkpointer) -> None:
        """Raises ValueError, on all ranks, unless `fit` goes through `dataset(make)`, as far as can be seen."""
        wrong = None
        if self._resumable is None:
            wrong = "fit has to be given checkpoint.dataset(make): other inputs cannot be gone on with at a batch"
        elif (steps := self.params.get("steps")) is not None:
            wrong = (
                f"fit makes {steps} steps per epoch by itself: give it checkpoint.dataset(make), or tsps.lookahead "
                "around it, without steps_per_epoch; an epoch has the batches that make(epoch) returns"
            )
        found = checkpointer.ranks.allgather_object(wrong, "tsps.checkpoint.input")
        if any(found):
            each = [f"on rank {rank}: {text}" for rank, text in enumerate(found) if text]
            raise ValueError("Checkpoint cannot restart this fit: " + "; ".join(each))

    def _go_to_next_batch(self) -> None:
        """Goes to the next epoch if the one that was restored has no batch left.

        Raises:
          StateError: On all ranks: it has fewer than were trained; or ranks differ.
        """
        assert self._checkpointer is not None
        assert self._resumable is not None
        epoch, batch = self._position.epoch, self._position.batch
        n = self._resumable.batches(epoch)
        more = self._resumable.has_more(epoch, batch)
        everyone = self._checkpointer.ranks.allgather_object((n, more), "tsps.checkpoint.more")
        if any(found != everyone[0] for found in everyone) or (n is not None and n < batch):
            raise StateError(
                f"{batch} batches of epoch {epoch} were trained when the checkpoint was saved, and make({epoch}) gives "
                f"the ranks {[found for found, _ in everyone]} batches: it must return what it returned then"
            )
        if not more:
            self._position.end_epoch()


class _Clock:
    """Tells all ranks alike when a time has passed on rank 0."""

    def __init__(self, seconds: float, ranks: collectives_lib.Collectives, made: int) -> None:
        """Begins to count. `made`: Updates so far."""
        self._seconds, self._ranks = seconds, ranks
        self._last = time.monotonic()
        self._asked, self._asked_at = made, self._last
        self._ask_next = made + 1

    def is_time(self, made: int) -> bool:
        """Whether to save after so many updates. Every rank calls it after each; they meet in some of these calls."""
        if made < self._ask_next:
            return False
        now = time.monotonic()
        due = now - self._last >= self._seconds
        per_step = (now - self._asked_at) / max(made - self._asked, 1)
        left = self._seconds - (0.0 if due else now - self._last)
        # Halfway there at most, and never much longer than it was between the last two times.
        steps = int(min(max(left / 2 / max(per_step, 1e-9), 1), 2 * max(made - self._asked, 1), 1000))
        due, steps = self._ranks.broadcast_object((due, steps), 0, "tsps.checkpoint.clock")
        self._asked, self._asked_at, self._ask_next = made, now, made + steps
        if due:
            self._last = now
        return bool(due)


def _refuse_beside(model: Any, callbacks: Sequence[Any]) -> None:
    """Raises UnsupportedError for callbacks of `fit` that cannot be beside a `Checkpoint`."""
    ours = [one for one in callbacks if isinstance(one, Checkpoint)]
    if not ours:
        if any(one in _DATASETS for one in _tensorflow.datasets_in(_keras_fit.input_of(model))):
            raise ValueError(
                "fit goes through checkpoint.dataset(make) without the callback: every epoch would have the batches of "
                "make(0), and nothing would be saved. Give it callbacks=[checkpoint]"
            )
        return
    if len(ours) > 1:
        raise UnsupportedError("fit has two tsps.callbacks.Checkpoint: both would choose where it begins. Use one")
    refuse_order(callbacks, ours[0])
    ours[0].begins_beside([one for one in callbacks if one is not ours[0]])
    for one in callbacks:
        if _keras.is_callback(one, "BackupAndRestore"):
            raise UnsupportedError(
                "BackupAndRestore beside tsps.callbacks.Checkpoint is not supported: both would choose where fit "
                "begins, and it has no tables of several machines. Leave BackupAndRestore out"
            )


fits.before_fit(_refuse_beside)
