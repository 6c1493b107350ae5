"""`Checkpointer`: one step of a job, all of it, into files and back."""

from __future__ import annotations

import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._version import __version__
from tf_sparse_ps.checkpoints import callback_states, fault_points, manifest, newest, tables, variables
from tf_sparse_ps.checkpoints.callback_states import CallbackStates
from tf_sparse_ps.checkpoints.directory import Checked, CheckpointDirectory, is_damage
from tf_sparse_ps.checkpoints.manifest import Manifest
from tf_sparse_ps.checkpoints.position import Position
from tf_sparse_ps.checkpoints.resumable import Make, ResumableDataset
from tf_sparse_ps.checkpoints.saver import Saver
from tf_sparse_ps.checkpoints.writers import Copies
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import (
    UNREACHABLE,
    error_text,
    must_agree,
    raise_failures,
    raising_on_all,
)
from tf_sparse_ps.errors import (
    NotSavedError,
    StateError,
    UnsupportedError,
)
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.node import activity
from tf_sparse_ps.reduction.optimizer_identity import OptimizerIdentity
from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer


class Checkpointer:
    """Saves and restores a training job: tables, dense weights, optimizer and position, all of one step.

    ```python
    checkpointer = tsps.Checkpointer("/shared/checkpoints", model, optimizer)
    checkpointer.restore()
    for epoch in checkpointer.epochs(10):
        for batch in checkpointer.dataset(make):  # make(epoch) returns the batches of an epoch
            train(batch)
            if int(optimizer.iterations) % 1000 == 0:
                checkpointer.save()
    ```

    Every rank makes one, and calls its methods together with the others, between the same two steps. One rank of each
    machine writes, beside the training that goes on; all machines must see the directory, or have one each.
    docs/checkpoints.md says what a checkpoint has.

    Attributes:
      directory: Absolute path.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        model: Any,
        optimizer: DistributedOptimizer,
        *,
        keep: int = 3,
        incremental: bool = True,
        background: bool = True,
        per_node: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Reads and writes nothing.

        Args:
          directory: Of the job's checkpoints, and of nothing else; all machines see it, but with `per_node`. The first
            save makes it.
          model: A Keras model, built when it is saved or restored.
          optimizer: A `DistributedOptimizer`, which trains it.
          keep: How many checkpoints stay, at least 1; with them stays what they build on.
          incremental: Save of tables what has changed since the checkpoint before, where that is known and the chain is
            not too long.
          background: Write beside the training that goes on. False: `save` returns when the checkpoint is on the disk.
          per_node: Every machine has a directory of its own at this path, with what its ranks restore. False: all
            machines see one directory, and each writes a part of what is in it.
          extra: Variables that are saved with them, by name.

        Raises:
          TypeError: The optimizer is no `DistributedOptimizer`; an extra is no variable.
          ValueError: `keep` is no positive integer; the directory is no local path.
          UnsupportedError: A tf.distribute strategy trains the model.
        """
        if not isinstance(optimizer, DistributedOptimizer):
            raise TypeError(
                f"Checkpointer needs a tsps.DistributedOptimizer. Received: optimizer={type(optimizer).__name__}"
            )
        check_arguments(directory, keep, extra)
        self._ranks: Collectives = collectives_lib.resolve(optimizer.collectives)
        strategy = collectives_lib.active_strategy()
        if self._ranks.kind == "tf.distribute" or (strategy is not None and strategy.num_replicas_in_sync > 1):
            raise UnsupportedError(
                "Checkpointer does not work under a tf.distribute strategy: its datasets are distributed by the "
                "strategy, which does not go to a batch. Use Horovod's ranks, or collectives='tensorflow'"
            )
        self._directory = CheckpointDirectory(directory)
        self.directory = str(self._directory.path)
        self._model, self._optimizer = model, optimizer
        self._extra = dict(extra or {})
        self._metrics: list[variables.Metric] = []  # an epoch's, that were restored
        self._states: CallbackStates | None = None
        self._stored_states: list[callback_states.Record] | None = None
        self._rate: Any = None  # the learning rate that was restored
        self._resumable: ResumableDataset | None = None
        self._saved_at: int | None = None
        self._background = bool(background)
        self._saver = Saver(
            self._directory,
            self._ranks,
            keep=keep,
            incremental=bool(incremental),
            background=self._background,
            per_node=bool(per_node),
        )
        self.position = Position(self._iterations)

    # --- saving ---

    def save(self, step: int | None = None) -> str:
        """Saves the job as it is, and removes old checkpoints. Every rank calls it, between the same two steps.

        Drains the schedule, waits for the save before, copies dense weights, and returns; a rank of each machine then
        writes beside the training that goes on. `wait` returns when the checkpoint is on the disk.

        Args:
          step: That the folder is named after; None: the optimizer's number of updates.

        Returns:
          The folder that the checkpoint will be; with `per_node` this machine's, whose name may be another elsewhere.

        Raises:
          NotSavedError: On all ranks: the one before, or this one, could not be written, with the reason. Those before
            it are there, the job is as it was, and nothing is being written: the next save may work.
          StateError: On all ranks: the directory has checkpoints, and `restore` was not called; tables are of
            different steps.
          ValueError: On all ranks: ranks are at different steps; the model is not built; `step` is below that of a
            checkpoint that there is.
        """
        if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
            raise ValueError(f"`step` must be an integer of at least 0. Received: step={step!r}")
        with activity.doing(f"saving a checkpoint to {self.directory}"):
            self.wait()
            self._optimizer.drain()
            bindings = tables.of(self._model)
            self._build()
            entries = self._entries()
            self._refuse_other_optimizers(bindings)
            table_step = tables.committed_step() if bindings else 0
            iterations, epoch, batch = self._iterations(), self.position.epoch, self.position.batch
            where = "a directory of each node" if self._saver.per_node else self.directory
            facts = {
                "call": f"saving a checkpoint to {where}",
                "step": str(step),
                "updates made": str(iterations),
                "step of the tables": str(table_step),
                "epoch": str(epoch),
                "batch": str(batch),
                "number of tables": str(len(bindings)),
                "in the background": str(self._background),
            }
            must_agree(self._ranks.allgather_object(facts, "tsps.checkpoint.save"))
            ids = (secrets.token_hex(8), self._saver.run)
            own_id, run = self._ranks.broadcast_object(ids, 0, "tsps.checkpoint.ids")
            content = Manifest(
                name="",
                step=iterations,
                table_step=table_step,
                epoch=epoch,
                batch=batch,
                ranks=self._ranks.size,
                nodes=len(job.current().leaders) if bindings or self._saver.per_node else 1,
                job=job.current().identity.name if bindings else None,
                id=own_id,
                run=run,
                chain=(),
                versions=_versions(),
                tables=tuple(tables.facts(one) for one in bindings),
                variables=tuple(entry.facts() for entry in entries),
                files=(),
                optimizer=OptimizerIdentity.of(self._optimizer.inner_optimizer).number,
                node=job.current().node if self._saver.per_node else None,
            )

            def capture_values(writes: bool) -> list[Copies]:
                values: list[Copies] = [variables.Values(entries, self._ranks, keep=writes)]
                if self._states is not None:
                    values.append(self._states.capture(self._ranks, keep=writes))
                return values

            path = self._saver.begin(iterations if step is None else step, content, bindings, capture_values)
            self._saved_at = iterations
            return path

    def wait(self) -> None:
        """Waits until the last save is on the disk. Every rank calls it, between the same two steps.

        Raises:
          NotSavedError: On all ranks: it could not be written, with the reason. Only once.
        """
        try:
            self._saver.wait()
        except NotSavedError:
            self._saved_at = None
            raise

    @property
    def is_saving(self) -> bool:
        """Whether this process is writing a checkpoint, beside whatever else it does. On leaders alone."""
        return self._saver.is_saving

    # --- restoring ---

    def latest(self) -> str | None:
        """The newest checkpoint that is whole, or None. Reads all of its files; any rank may call it alone.

        A warning names each newer one that is damaged, with the reason. Waits first for what this process is writing.
        With `per_node`, of this machine's: `restore` takes the newest that all have.
        """
        self._saver.finish_own()
        found, _ = newest.newest(self._directory)
        return None if found is None else str(found.path)

    def restore(self) -> str | None:
        """Makes the job what the newest whole checkpoint has. Every rank calls it, before the first step.

        Rows and slots of tables, dense weights, the optimizer and the position: whatever the tables of a named job are
        at, they become what the checkpoint has. Any number of ranks and nodes, placement and storage may have saved it.

        Returns:
          The checkpoint's folder; None if there is none: the job is then as it was.

        Raises:
          StateError: On all ranks: training has begun; a rank does not see the checkpoint; its parts are of different
            steps; or there is none, and tables of an earlier run are at another step than the optimizer.
          ValueError: On all ranks: the model or the optimizer is another one.
        """
        with activity.doing(f"restoring a checkpoint of {self.directory}"):
            try:
                self.wait()
            except NotSavedError as error:
                warnings.warn(str(error), stacklevel=2)
            bindings = tables.of(self._model)
            self._build()
            entries = self._entries()
            self._together(self._refuse_steps_before, f"restoring from {self.directory}")
            checked, is_read, _ = self._choose(read_once=True)
            if checked is None:
                self._refuse_tables_of_other_steps(bindings)
                return None
            if self._restore_tables(checked, bindings, entries, is_read=is_read):
                return self._restore_rest(checked, bindings, entries)
            # All that there is to read is read now, before anything is changed once more.
            checked, *_ = self._choose(read_once=False)
            if checked is None:
                raise StateError(
                    f"no checkpoint in {self.directory} is whole, and tables have rows of one of them: there is "
                    "nothing to go on with. To begin anew, use another directory, and another TFSPS_JOB if the job has "
                    "a name"
                )
            self._restore_tables(checked, bindings, entries, is_read=True)
            return self._restore_rest(checked, bindings, entries)

    def _refuse_other_optimizers(self, bindings: Sequence[TableBinding]) -> None:
        identity = OptimizerIdentity.of(self._optimizer.inner_optimizer)
        others = [one.config.name for one in bindings if identity.trains_beside(one.trained_by()[0])]
        if others:
            raise StateError(
                f"tables {others} are trained by another optimizer than the Checkpointer's, whose variables would be "
                "missing in the checkpoint. Train all tables of a model with one optimizer"
            )

    def _refuse_steps_before(self) -> None:
        if self._optimizer.begun:
            raise StateError(
                f"a checkpoint of {self.directory} cannot be restored: training has begun, {self._iterations()} "
                "updates were made. Call restore() before the first step; give the first fit the Checkpoint callback, "
                "and further ones the same"
            )

    def _restore_tables(
        self, checked: Checked, bindings: list[TableBinding], entries: list[variables.Entry], *, is_read: bool
    ) -> bool:
        """Compares the model with a checkpoint, and makes the tables what it has.

        Args:
          checked: The checkpoint.
          is_read: Its files with rows have been found to be whole. Else damage may be found in reading them.

        Returns:
          On all ranks, whether they are; if not, tables may have any of its rows. Always if `is_read`.
        """
        path = checked.path
        of_tables = tables.Stored(checked)
        of_variables = self._stored_variables(checked)

        def compare() -> None:
            of_tables.check(bindings)
            of_variables.check(entries)

        if not self._are_whole(compare, path, is_read=is_read):
            return False
        fault_points.reach("compared")
        self._saver.forget()
        of_tables.restore(bindings)
        if not self._are_whole(of_tables.check_read, path, is_read=is_read):
            return False
        if bindings:
            of_tables.set_step(self._ranks)
        return True

    def _are_whole(self, read: Callable[[], None], path: Path, *, is_read: bool) -> bool:
        """Reads on all ranks, and says on all whether there was no damage; raises it if the files have been read."""
        error: Exception | None = None
        try:
            read()
        except UNREACHABLE:
            raise
        except Exception as caught:
            error = caught
        # A file of another step is one that was put there, or damage.
        damaged = not is_read and error is not None and (isinstance(error, StateError) or is_damage(error))
        found = self._ranks.allgather_object((error_text(error), damaged), "tsps.checkpoint.whole")
        if all(text is None or theirs for text, theirs in found):
            if text := next((text for text, _ in found if text is not None), None):
                warnings.warn(f"checkpoint {path} is not whole, an older one is looked for: {text}", stacklevel=4)
            return text is None
        raise_failures([text for text, _ in found], error, f"restoring {path}")
        return True

    def _stored_variables(self, checked: Checked) -> variables.Stored:
        content = checked.manifest
        names = {one.name for one in content.files}
        return variables.Stored(checked.path, content.variables, content.stamp, content.ranks, names)

    def _restore_rest(self, checked: Checked, bindings: list[TableBinding], entries: list[variables.Entry]) -> str:
        """What is behind the tables."""
        content, path = checked.manifest, checked.path
        of_variables = self._stored_variables(checked)

        rates: list[Any] = []

        def assign() -> None:
            rate = _keras.learning_rate_variable(self._optimizer.inner_optimizer)
            rates.append(None if rate is None else rate.numpy())
            self._metrics = of_variables.restore(entries, self._ranks.rank, self._ranks.size)
            self._rate = None if rate is None else rate.numpy()
            if self._states is not None and manifest.CALLBACKS in (one.name for one in content.files):
                self._stored_states = callback_states.read(path, content.stamp, self._ranks.rank, self._ranks.size)

        self._together(assign, f"restoring {path}")
        fault_points.reach("variables_restored")
        self._optimizer.begin_restored()
        if content.optimizer:
            OptimizerIdentity.of(self._optimizer.inner_optimizer).take(content.optimizer)
        self.position.go_to(content.epoch, content.batch)
        self._saved_at = self._iterations()
        self._check_step(bindings, content)
        if self._ranks.rank == 0:
            print(
                f"tf_sparse_ps: restored {path}: step {content.step}, batch {content.batch} of epoch {content.epoch}",
                file=sys.stderr,
                flush=True,
            )
            if rates[0] != self._rate:
                print(
                    f"tf_sparse_ps: its learning rate is {self._rate:g}, not {rates[0]:g}", file=sys.stderr, flush=True
                )
            if content.batch and content.ranks != self._ranks.size:
                warnings.warn(
                    f"checkpoint {path} is of {content.ranks} ranks, and these are {self._ranks.size}: each goes on at "
                    f"batch {content.batch} of what make({content.epoch}) gives it now. Other batches of this epoch "
                    "than were trained may be skipped or come twice",
                    stacklevel=3,
                )
        return str(path)

    def _choose(self, *, read_once: bool) -> newest.Chosen:
        """The checkpoint that all ranks restore."""
        agree = newest.agree_per_node if self._saver.per_node else newest.agree
        chosen = agree(self._directory, self._ranks, read_once=read_once)
        self._saver.begin_with(None if chosen.checkpoint is None else chosen.checkpoint.path, chosen.passed_over)
        return chosen

    def _refuse_tables_of_other_steps(self, bindings: list[Any]) -> None:
        def compare() -> None:
            if not bindings or self._optimizer.begun:
                return
            found, made = job.current().group.found_at_step, self._iterations()
            if found not in (0, made):
                raise StateError(
                    f"the tables of job {job.current().identity.name!r} are at step {found}, the optimizer is at "
                    f"{made}, and {self.directory} has no checkpoint to go back to. Remove {job.current().group_path}, "
                    "or use another TFSPS_JOB, to begin anew"
                )

        self._together(compare, "beginning without a checkpoint")

    def _check_step(self, bindings: list[Any], content: Manifest) -> None:
        def compare() -> None:
            if (made := self._iterations()) != content.step:
                raise StateError(f"the optimizer is at step {made} after a checkpoint of step {content.step}")
            if bindings and (found := tables.committed_step()) != content.table_step:
                raise StateError(f"the tables are at step {found} after a checkpoint of step {content.table_step}")

        self._together(compare, f"restoring {content.name}")

    # --- data ---

    def dataset(self, make: Make) -> tf.data.Dataset:
        """The batches of the epoch that training is in; of the one that was restored, those that were not trained.

        Every time that somebody begins to go through it, it asks which epoch that is (`epochs`). A Python loop over the
        dataset counts the batches that it takes, whatever it does with them: several may make one update, and a batch
        that is refused counts too. In a `tf.function`, or behind other stages of tf.data, each update of the optimizer
        stands for one batch. A restart skips the batches that were counted, which reads them.

        Args:
          make: Called with an epoch, from 0 on, returns a `tf.data.Dataset` of its batches, for this rank. The same
            epoch must give the same batches in the same order: shuffle with a seed that follows from it.

        Returns:
          A dataset of unknown cardinality. `tsps.lookahead` goes around it.

        Raises:
          TypeError: `make(0)` is no dataset.

        Example:
          def make(epoch):
              return data.shuffle(10_000, seed=epoch, reshuffle_each_iteration=False).batch(256, drop_remainder=True)
        """
        self._resumable = ResumableDataset(make, self.position)
        return self._resumable.dataset

    def epochs(self, n: int) -> Iterator[int]:
        """The epochs that are left of n, in a custom training loop. After its body an epoch has ended.

        Args:
          n: Epochs in all, from 0 on.
        """
        while self.position.epoch < n:
            yield self.position.epoch
            self.position.end_epoch()

    # --- for `tsps.callbacks.Checkpoint` ---

    @property
    def resumable(self) -> ResumableDataset | None:
        """What `dataset` was called for last."""
        return self._resumable

    @property
    def ranks(self) -> Collectives:
        """The collectives that checkpoints are saved with."""
        return self._ranks

    @property
    def unsaved(self) -> bool:
        """Whether steps have been made since the last `save` or `restore`."""
        return self._saved_at != self._iterations()

    def restore_metrics(self, batch: Any) -> None:
        """Gives the model's metrics the values that they had when the checkpoint was saved, once, if it has them.

        Args:
          batch: `tf.TensorSpec`s of what the model is fitted to, for metrics that are not built. None: an epoch begins,
            and with it its metrics.
        """
        stored, self._metrics = self._metrics, []
        if batch is None or not stored or variables.give_metrics(_keras.metric_variables(self._model), stored):
            return
        _keras.build_metrics(self._model, batch)
        if not variables.give_metrics(_keras.metric_variables(self._model), stored) and self._ranks.rank == 0:
            warnings.warn(
                f"metrics of epoch {self.position.epoch} are from batch {self.position.batch} on: the model has others "
                "than were saved, or makes them with its first batch",
                stacklevel=2,
            )

    def must_be_of(self, model: Any, optimizer: Any) -> None:
        """Raises ValueError for another model or optimizer than it saves."""
        for what, own, theirs in (("model", self._model, model), ("optimizer", self._optimizer, optimizer)):
            if own is not theirs:
                raise ValueError(
                    f"this fit trains another {what} than the one before, whose checkpoints are in {self.directory}: "
                    "the Checkpoint callback would save the old one. Give it a callback, and a directory, of its own"
                    + (" (model.compile made a new optimizer)" if what == "optimizer" else "")
                )

    def carry(self, states: CallbackStates) -> None:
        """From now on checkpoints have the states of these callbacks. Every rank calls it."""
        self._states = states

    @property
    def carries_states(self) -> bool:
        """Whether checkpoints have states of callbacks."""
        return self._states is not None and self._states.any

    def restore_callbacks(self) -> bool:
        """Gives callbacks, and the learning rate, what they had when the checkpoint was saved. Every rank calls it.

        Returns:
          Whether one of them had ended training on a rank.
        """
        assert self._states is not None
        stored, self._stored_states = self._stored_states, None
        self._states.restore(stored)
        rate = _keras.learning_rate_variable(self._optimizer.inner_optimizer)
        if rate is not None and self._rate is not None:
            rate.assign(self._rate)
        return any(self._ranks.allgather_object(self._states.has_stopped, "tsps.checkpoint.stopped"))

    # --- helpers ---

    def _iterations(self) -> int:
        return int(tf.convert_to_tensor(self._optimizer.iterations))

    def _build(self) -> None:
        """Makes the optimizer's variables, if there has been no step yet."""
        if not getattr(self._optimizer, "built", False):
            _keras.all_variables(self._model)  # or it raises
            self._optimizer.build(self._model.trainable_variables)

    def _entries(self) -> list[variables.Entry]:
        return variables.collect(self._model, self._optimizer, self._extra)

    def _together(self, action: Callable[[], Any], call: str) -> None:
        """Does something on every rank, and raises on all if it fails on one."""
        with raising_on_all(self._ranks, call, "tsps.checkpoint.together"):
            action()


def check_arguments(directory: Any, keep: Any, extra: Any) -> None:
    """Raises TypeError or ValueError for what `Checkpointer` cannot be given."""
    if not isinstance(directory, str | os.PathLike):
        raise TypeError(f"`directory` must be a path. Received: directory={directory!r}")
    if "://" in os.fspath(directory):
        raise ValueError(f"`directory` must be a path of a mounted file system. Received: {directory!r}")
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise ValueError(f"`keep` must be an integer of at least 1. Received: keep={keep!r}")
    if extra is not None and not isinstance(extra, Mapping):
        raise TypeError(f"`extra` must be a dict of variables by name. Received: extra={extra!r}")
    for name, one in (extra or {}).items():
        if not isinstance(_keras.tf_variable(one) if hasattr(one, "value") else one, tf.Variable):
            raise TypeError(f"extra[{name!r}] must be a variable. Received: {type(one).__name__}")


def _versions() -> dict[str, str]:
    keras = str(getattr(_keras.keras, "__version__", "2"))
    return {
        "tf_sparse_ps": __version__,
        "tensorflow": tf.__version__,
        "keras": keras,
        "python": ".".join(map(str, sys.version_info[:3])),
    }
