"""`Checkpoint`: `fit` saves checkpoints, and the same program, started again, resumes from the newest one."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tf_sparse_ps._compat import _keras, _keras_fit, _tensorflow
from tf_sparse_ps.callbacks.preemption import Agreed, Preemption
from tf_sparse_ps.callbacks.rank_clock import RankClock
from tf_sparse_ps.checkpoints.allowance import Allowance
from tf_sparse_ps.checkpoints.callback_states import CallbackStates, refuse_order
from tf_sparse_ps.checkpoints.checkpointer import check_arguments
from tf_sparse_ps.checkpoints.directories import open_directory
from tf_sparse_ps.checkpoints.epoch_batches import batches_of
from tf_sparse_ps.checkpoints.fit_checkpointer import FitCheckpointer
from tf_sparse_ps.checkpoints.position import Position
from tf_sparse_ps.checkpoints.resumable import Make, ResumableDataset
from tf_sparse_ps.checkpoints.schema import RestoreReport
from tf_sparse_ps.collectives.all_or_none import raising_on_all
from tf_sparse_ps.config.plain_numbers import check_interval, plain
from tf_sparse_ps.errors import NotSavedError, StateError, UnsupportedError
from tf_sparse_ps.training import fits

_DATASETS: weakref.WeakSet[tf.data.Dataset] = weakref.WeakSet()  # what `Checkpoint.dataset` has returned


class Checkpoint(_keras.keras.callbacks.Callback):
    """Saves checkpoints in `fit`, and resumes from the newest one when the same program is started again.

    ```python
    def make(epoch):  # returns this rank's batches of an epoch
        return data.shuffle(10_000, seed=epoch).batch(256, drop_remainder=True)

    checkpoint = tsps.callbacks.Checkpoint("/shared/checkpoints", every_steps=1000)
    model.fit(checkpoint.dataset(make), epochs=10, callbacks=[checkpoint])
    ```

    A checkpoint holds the tables, the dense weights, the optimizer, the position in the data and the states of other
    callbacks, all of one step. When training begins, the callback restores the newest whole checkpoint, and `fit`
    resumes at the batch after it. If there is no checkpoint, the callback saves one first.

    Every rank needs the callback. If the first save fails, `fit` raises an error. If a later save fails, the callback
    warns and training continues; the next save is tried again.

    Put the callback after callbacks that change the model or the learning rate, and after those whose state it saves:
    EarlyStopping, ReduceLROnPlateau, ModelCheckpoint, and callbacks that have `get_state()` and `set_state(state)`.

    `tsps.Checkpointer` does the same in custom training loops. docs/checkpoints.md describes the files.
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
        staging: str | os.PathLike[str] | None = None,
        extra: Mapping[str, Any] | None = None,
        on_preemption: bool = False,
        allow: Collection[str] = (),
        renames: Mapping[str, str] | None = None,
    ) -> None:
        """Makes the callback. It reads and writes no file yet.

        Give at most one of `every_steps` and `every_seconds`. Without them, the callback saves when an epoch ends. It
        also saves when `fit` ends.

        Args:
          directory: The directory of the checkpoints: a path, or a URL of fsspec such as s3://bucket/run1. All machines
            must see it, unless `per_node` is set.
          every_steps: Save after this many updates of the optimizer.
          every_seconds: Save after this many seconds, by the clock of rank 0. The ranks agree on the step to save.
          keep: How many checkpoints to keep, at least 1. Checkpoints that these build on are kept, too.
          incremental: Save only what has changed in the tables since the checkpoint before, where possible.
          background: Write the files while training continues. False: each save waits until they are on the disk.
          per_node: Every machine has a directory of its own at this path. False: all machines see one directory.
          staging: With a URL: a folder of each machine for files that are uploaded or restored. None: that of temporary
            files.
          extra: Variables to save as well, by name.
          on_preemption: After SIGTERM or SIGINT on any rank, save at the next step on which the ranks agree, within
            about a second, and raise SystemExit on all ranks, with 128 + the number of the signal (143, 130). A handler
            of the program is called after the save, on the ranks that got the signal.
          allow: The differences from the checkpoint that are accepted: see `Checkpointer.restore`.
          renames: The names that tables have now, by their names in the checkpoint.

        Raises:
          TypeError: `directory` is not a path, an extra is not a variable, or as `Checkpointer.restore`.
          ValueError: Both `every_steps` and `every_seconds` are given, or the one that is given is not above 0; `keep`
            is not a positive integer; `per_node` is set with a URL, or `staging` with a path.
          UnsupportedError, OSError: The URL cannot be opened, or not listed.
        """
        super().__init__()
        every_steps, every_seconds, keep = plain(every_steps), plain(every_seconds), plain(keep)
        if every_steps is not None and every_seconds is not None:
            raise ValueError(
                "Checkpoint takes one of `every_steps` and `every_seconds`, or neither. Received: "
                f"every_steps={every_steps!r}, every_seconds={every_seconds!r}"
            )
        self._saves_at_ends = every_steps is None and every_seconds is None  # of epochs, and at no other time
        if not self._saves_at_ends:
            check_interval(every_steps, every_seconds)
        check_arguments(directory, keep, extra)
        self._allowance = Allowance.of(allow, renames)
        open_directory(directory, staging, per_node=per_node)
        self._directory = directory
        self._options: dict[str, Any] = {
            "keep": keep,
            "incremental": incremental,
            "background": background,
            "per_node": per_node,
            "staging": staging,
            "extra": dict(extra or {}),
        }
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._position = Position(self._updates)
        self._resumable: ResumableDataset | None = None
        self._checkpointer: FitCheckpointer | None = None
        self._updates_seen = 0  # when `_is_time` was last called
        self._clock: RankClock | None = None
        self._batches: int | None = None  # of this epoch
        self._passes_before = 0  # passes over the dataset that had begun before this epoch
        self._save_is_due = False  # to be made when the epoch has ended
        self._other_callbacks: list[Any] = []  # of the `fit`
        self._preemption = Preemption() if on_preemption else None
        self._failure: NotSavedError | None = None  # of the last save
        self._preempted: Agreed | None = None  # a signal after which `fit` ends when the epoch has ended
        self._states_are_due = False  # callbacks get their restored states when the epoch has begun

    @property
    def report(self) -> RestoreReport | None:
        """A list of what the first `fit` has restored, as `Checkpointer.report`; None: it has restored nothing."""
        return None if self._checkpointer is None else self._checkpointer.report

    def dataset(
        self,
        x: Make | tf.data.Dataset | Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> tf.data.Dataset:
        """Returns the dataset to give to `fit`: in each epoch, the batches that have not been trained yet.

        Nothing is sharded: each rank gives its own samples, for example `x[rank::size]`. All ranks must have equally
        many batches.

        Args:
          x: One of these forms. The same epoch must give the same batches in the same order in every run.

            - A function. `make(epoch)`, with epochs from 0 on, returns a `tf.data.Dataset` of this rank's batches of
              the epoch. If you shuffle, derive the seed from the epoch.
            - A `tf.data.Dataset` of this rank's batches, the same ones for every epoch. Its order must be the same
              in every run and in every epoch: do not shuffle it with `reshuffle_each_iteration`.
            - An array `[samples, ...]`, or a tuple or dict of arrays: this rank's samples, as for `fit`. Floats of 64
              bits become Keras's floatx.
          y: With arrays: this rank's targets, also an array, tuple or dict.
          sample_weight: With arrays and `y`: this rank's weights of the samples.
          batch_size: With arrays: the number of samples of a batch, 32 by default. The last batch may be smaller.
          shuffle: With arrays: whether each epoch has another order of the samples. The order depends on `seed` and
            the epoch only.
          seed: With arrays: the seed of `shuffle`, at least 0.

        Returns:
          A dataset of unknown cardinality. `tsps.lookahead` may be applied to it.

        Raises:
          TypeError: `make(0)` does not return a `tf.data.Dataset`, or `x` has none of these forms.
          ValueError: Arrays have different numbers of samples, or no sample; the dataset is infinite; or an argument
            for arrays was given with a function or a dataset.
        """
        self._resumable = ResumableDataset(batches_of(x, y, sample_weight, batch_size, shuffle, seed), self._position)
        _DATASETS.add(self._resumable.dataset)
        return self._resumable.dataset

    def _settings_of_fit(self) -> dict[str, Any]:
        """Returns what ranks compare when `fit` begins: see `training/fits.py`."""
        extra = sorted(self._options["extra"])
        return {
            **self._options,
            **self._allowance.facts(),
            "extra": extra,
            "every_steps": self._every_steps,
            "every_seconds": self._every_seconds,
            "on_preemption": self._preemption is not None,
            "use of checkpoint.dataset": self._resumable is not None,
        }

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the newest checkpoint, or saves the first one.

        Raises:
          ValueError: On all ranks: `every_steps` or `every_seconds` needs `dataset(...)`; or as `Checkpointer.restore`.
          StateError: On all ranks: the checkpoint is of the middle of an epoch, and `fit` was not given `dataset(...)`;
            or as `Checkpointer.restore`.
          NotSavedError: On all ranks: the first checkpoint could not be saved.
          UnsupportedError: On all ranks: with `on_preemption`, `fit` does not run in the main thread.
        """
        if self._checkpointer is None:
            checkpointer = FitCheckpointer(self._directory, self.model, self._position, **self._options)
            with raising_on_all(checkpointer.ranks, "beginning fit", "tsps.checkpoint.input", ValueError):
                if self._preemption is not None:
                    self._preemption.check_thread()
                self._refuse_other_input()
            if self._resumable is None and checkpointer.ranks.rank == 0:
                print(
                    "tf_sparse_ps: Checkpoint saves at the ends of epochs only, and a restart repeats an epoch that "
                    "has not ended, because fit was not given checkpoint.dataset(...)",
                    file=sys.stderr,
                    flush=True,
                )
            checkpointer.carry(CallbackStates(self._other_callbacks))
            self._states_are_due = checkpointer.restore(**self._allowance.arguments()) is not None
            if not self._states_are_due:
                self._position.go_to(0, 0)
                checkpointer.save()
                checkpointer.wait()
            self._checkpointer = checkpointer
        else:  # an exception may have ended the fit before within an epoch
            self._checkpointer.must_train(self.model)
            self._checkpointer.carry(CallbackStates(self._other_callbacks))
            self._position.go_to(self._position.epoch, self._position.batch if self._resumable is not None else 0)
        if self._position.batch:
            self._go_to_next_batch()
        self._updates_seen, self._save_is_due = self._updates(), False
        if self._every_seconds is not None:
            self._clock = RankClock(
                self._every_seconds, self._checkpointer.ranks, self._updates_seen, "tsps.checkpoint.clock"
            )
        if self._preemption is not None:
            self._preempted = None
            self._preemption.begin(self._checkpointer.ranks, self._updates_seen)
        epochs = self.params.get("epochs") or 0
        first_epoch = self._position.epoch
        # In mid-epoch what others do when it begins is done, and is in the checkpoint.
        if self._states_are_due and not (self._position.batch and first_epoch < epochs):
            self._states_are_due = False
            if self._checkpointer.restore_callbacks():
                first_epoch = max(first_epoch, epochs)
                if self._checkpointer.ranks.rank == 0:
                    print(
                        f"tf_sparse_ps: EarlyStopping has ended training after epoch {self._position.epoch}",
                        file=sys.stderr,
                    )
        _keras_fit.at_end(lambda: _keras_fit.end(self.model))
        _keras_fit.begin_at_epoch(self.model, first_epoch)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells `fit` how many batches of the epoch are left, and compares their number on all ranks.

        Raises:
          ValueError: On all ranks: they have different numbers of batches.
        """
        assert self._checkpointer is not None
        if epoch != self._position.epoch:  # fit's initial_epoch
            self._position.go_to(epoch, 0)
        if self._resumable is None:
            self._batches = self.params.get("steps")
            self._checkpointer.restore_metrics(None)
            return
        batch, self._batches = self._position.batch, self._resumable.batches(epoch)
        all_batches = self._checkpointer.ranks.allgather_object(self._batches, "tsps.checkpoint.batches")
        if len(set(all_batches)) > 1:
            raise ValueError(
                f"the ranks have different numbers of batches in epoch {epoch}: {all_batches}. They would wait for "
                "each other at its end. Let each rank take() as many batches as the rank with fewest has"
            )
        _keras_fit.begin_epoch(self.model, batch, self._batches)
        # Metrics of an epoch that has ended are none of the one that begins.
        self._checkpointer.restore_metrics(self._resumable.dataset.element_spec if batch else None)
        if self._states_are_due:
            self._states_are_due = False
            self._checkpointer.restore_callbacks()
        self._passes_before = self._resumable.passes

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, if it is time to.

        Raises:
          ValueError: `fit` uses another dataset than the callback's.
          SystemExit: On all ranks: a rank got a signal, with `on_preemption`.
        """
        if self._resumable is not None and self._resumable.passes == self._passes_before:
            raise ValueError(
                "fit uses another dataset than the callback's, so a restart could not find the next batch. Give fit "
                "checkpoint.dataset(...), or tsps.lookahead of it"
            )
        if self._preempted is None and (preempted := self._agreed()) is not None:
            if not preempted.ends_epoch:
                self._leave(preempted)
            self._preempted = preempted
            if self._resumable is not None:  # validation may take longer than this process has
                self._save()
        if not self._is_time() or self._preempted is not None:
            return
        if self._ends_epoch():
            self._save_is_due = True  # after what else is done at the end of the epoch
        else:
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, if it was time to at the last batch of the epoch, or this is the last epoch.

        Raises:
          SystemExit: On all ranks: a rank got a signal, with `on_preemption`.
        """
        if not self._has_ended_early(epoch):
            self._position.end_epoch()
        assert self._checkpointer is not None
        self._preempted = self._preempted or self._agreed(now=True)
        if self._preempted is not None:
            is_wanted = True
        elif self._checkpointer.unsaved:  # in the last epoch before others change the model because training has ended
            is_wanted = self._save_is_due or self.model.stop_training or epoch + 1 == self.params.get("epochs")
            is_wanted = is_wanted or self._saves_at_ends
        else:  # the checkpoint of this step is from before the end of the epoch
            is_wanted = self._save_is_due or self._checkpointer.carries_states
        if is_wanted:
            self._save_is_due = False
            self._save()
        if self._preempted is not None:
            self._leave(self._preempted)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits for the save in progress, and saves what was trained since the last checkpoint.

        Raises:
          SystemExit: On all ranks: a rank got a signal, with `on_preemption`.
        """
        _keras_fit.end(self.model)
        if self._checkpointer is None:
            return
        self._try(self._checkpointer.wait)
        if self._checkpointer.unsaved:
            self._try(self._checkpointer.save)
            self._try(self._checkpointer.wait)
        if (preempted := self._agreed(now=True)) is not None:
            self._leave(preempted)
        if self._preemption is not None:
            self._preemption.end()

    def _has_ended_early(self, epoch: int) -> bool:
        """Whether training was ended before the last batch of the epoch: a restart resumes there."""
        if self._resumable is None:  # nothing resumes there
            return False
        return bool(self.model.stop_training) and self._resumable.has_more(epoch, self._position.batch)

    def _ends_epoch(self) -> bool:
        """Whether the last step was the last one of its epoch, as far as that is known."""
        return self._batches is not None and self._position.batch >= self._batches

    def _updates(self) -> int:
        model = getattr(self, "model", None)
        return 0 if model is None else int(tf.convert_to_tensor(model.optimizer.iterations))

    def _is_time(self) -> bool:
        before, self._updates_seen = self._updates_seen, self._updates()
        if self._saves_at_ends:
            return False
        if self._every_steps is not None:
            return before // self._every_steps != self._updates_seen // self._every_steps
        assert self._clock is not None
        return self._clock.is_time(self._updates_seen)

    def _save(self) -> None:
        assert self._checkpointer is not None
        self._try(self._checkpointer.wait)  # an error of the save before does not keep this one from beginning
        self._failure = None
        self._try(self._checkpointer.save)

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except NotSavedError as error:  # on all ranks
            self._failure = error
            warnings.warn(f"{error}. Training continues, and the next save is tried again", stacklevel=3)

    # --- preemption ---

    def _agreed(self, *, now: bool = False) -> Agreed | None:
        if self._preemption is None:
            return None
        return self._preemption.agreed(self._updates(), ends_epoch=self._ends_epoch(), now=now)

    def _leave(self, preempted: Agreed) -> NoReturn:
        """Saves if that is possible here and what is trained is not saved, waits until it is on the disk, and exits.

        Raises:
          SystemExit: On all ranks.
        """
        assert self._checkpointer is not None
        assert self._preemption is not None
        failure = self._failure
        try:
            if self._checkpointer.unsaved and (self._resumable is not None or not self._position.batch):
                with contextlib.suppress(NotSavedError):  # of the save before
                    self._checkpointer.wait()
                self._checkpointer.save()
                failure = None
            self._checkpointer.wait()
        except NotSavedError as error:  # on all ranks
            failure = error
        if self._checkpointer.ranks.rank == 0:
            resumes = self._resumable is not None
            text = preempted.farewell(self._position.epoch, self._position.batch, failure, resumes=resumes)
            print(f"tf_sparse_ps: {text}", file=sys.stderr, flush=True)
        self._preemption.leave(preempted)

    # --- the input of fit ---

    def _refuse_other_input(self) -> None:
        """Raises ValueError if the callback cannot save as often as it is to, or `fit` cuts epochs short."""
        if self._resumable is None:
            if self._saves_at_ends:
                return
            name = "every_steps" if self._every_seconds is None else "every_seconds"
            raise ValueError(
                f"Checkpoint has {name}, and fit was not given checkpoint.dataset(...). No other input can resume in "
                f"the middle of an epoch. Give fit checkpoint.dataset(...), or leave {name} out: Checkpoint then saves "
                "at the ends of epochs"
            )
        if (steps := self.params.get("steps")) is not None:
            raise ValueError(
                f"fit makes {steps} steps per epoch, but an epoch has the batches that checkpoint.dataset(...) was "
                "made of. Give fit checkpoint.dataset(...), or tsps.lookahead of it, and no steps_per_epoch"
            )

    def _go_to_next_batch(self) -> None:
        """Goes to the next epoch if all batches of the restored one were trained.

        Raises:
          StateError: On all ranks: `fit` was not given `dataset(...)`; the epoch has fewer batches than were trained,
            or ranks have different numbers.
        """
        assert self._checkpointer is not None
        epoch, batch = self._position.epoch, self._position.batch
        if self._resumable is None:
            raise StateError(
                f"the newest checkpoint is of batch {batch} of epoch {epoch}, and fit was not given "
                "checkpoint.dataset(...), so it would train these batches again. Give fit checkpoint.dataset(...) of "
                "the data with which the job began"
            )
        batches = self._resumable.batches(epoch)
        has_more = self._resumable.has_more(epoch, batch)
        counts = self._checkpointer.ranks.allgather_object((batches, has_more), "tsps.checkpoint.more")
        if any(count != counts[0] for count in counts) or (batches is not None and batches < batch):
            raise StateError(
                f"{batch} batches of epoch {epoch} were trained when the checkpoint was saved, and now the ranks have "
                f"{[n for n, _ in counts]} batches in it. Each epoch must have the batches that it had then"
            )
        if not has_more:
            self._position.end_epoch()


def _refuse_combinations(model: Any, callbacks: Sequence[Any]) -> None:
    """Refuses a `fit` whose callbacks or dataset do not work together with a `Checkpoint`.

    Raises:
      ValueError: `fit` was given the dataset of a `Checkpoint`, and not the callback.
      UnsupportedError: `fit` has several `Checkpoint`s, a BackupAndRestore, or an unsupported order of callbacks.
    """
    checkpoints = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    if not checkpoints:
        if any(dataset in _DATASETS for dataset in _tensorflow.datasets_in(_keras_fit.input_of(model))):
            raise ValueError(
                "fit was given checkpoint.dataset(...) without the callback: every epoch would have the batches of "
                "epoch 0, and nothing would be saved. Give fit callbacks=[checkpoint]"
            )
        return
    checkpoint = checkpoints[0]
    if len(checkpoints) > 1:
        raise UnsupportedError("fit has two tsps.callbacks.Checkpoint: both would choose where it begins. Use one")
    refuse_order(callbacks, checkpoint)
    checkpoint._other_callbacks = [callback for callback in callbacks if callback is not checkpoint]
    if any(_keras.is_callback(callback, "BackupAndRestore") for callback in callbacks):
        raise UnsupportedError(
            "fit has BackupAndRestore and tsps.callbacks.Checkpoint: both would choose where it begins, and "
            "BackupAndRestore does not save sharded tables. Remove BackupAndRestore"
        )


fits.before_fit(_refuse_combinations)
