"""`Checkpointer`: saves a training job to files, as of one step, and restores it."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import collectives as collectives_lib
from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import newest, tables, variables
from tf_sparse_ps.checkpoints.allowance import Allowance
from tf_sparse_ps.checkpoints.directories import open_directory
from tf_sparse_ps.checkpoints.epoch_batches import batches_of
from tf_sparse_ps.checkpoints.job_state import JobState
from tf_sparse_ps.checkpoints.manifest import Manifest
from tf_sparse_ps.checkpoints.restorer import Restored, Restorer
from tf_sparse_ps.checkpoints.resumable import Make, ResumableDataset
from tf_sparse_ps.checkpoints.saver import Saver
from tf_sparse_ps.checkpoints.schema import RestoreReport
from tf_sparse_ps.checkpoints.writers import Copies
from tf_sparse_ps.collectives.all_or_none import must_agree
from tf_sparse_ps.errors import NotSavedError, StateError, UnsupportedError
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.node import activity
from tf_sparse_ps.reduction.handshake import reconcile
from tf_sparse_ps.reduction.optimizer_identity import OptimizerIdentity
from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer, step_builder_of


class Checkpointer:
    """Saves and restores a training job in a custom training loop: `tsps.callbacks.Checkpoint` does it in `fit`.

    ```python
    def make(epoch):  # returns this rank's batches of an epoch
        return data.shuffle(10_000, seed=epoch, reshuffle_each_iteration=False).batch(256, drop_remainder=True)

    checkpointer = tsps.Checkpointer("/shared/checkpoints", model, optimizer)
    checkpointer.restore()
    for epoch in checkpointer.epochs(10):
        for batch in checkpointer.dataset(make):
            train_step(batch)
            if int(optimizer.iterations) % 1000 == 0:
                checkpointer.save()
    if checkpointer.unsaved:
        checkpointer.save()
    checkpointer.wait()
    ```

    A checkpoint holds the tables with their slots, the dense weights, the optimizer and the position in the data, all
    of one step. docs/checkpoints.md describes the files.

    Every rank makes a Checkpointer, and calls its methods together with the others, between the same two steps. One
    rank of each machine writes the files, while training continues. All machines must see the directory, or have one
    each (`per_node`).

    Attributes:
      directory: The absolute path of the directory, or its URL.
      position: Where training is: its attributes `epoch`, from 0 on, and `batch`, the number of batches of the epoch
        that were trained.
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
        staging: str | os.PathLike[str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the Checkpointer. It reads and writes no file yet, but lists a URL.

        Args:
          directory: The directory of the job's checkpoints: a path, or a URL of fsspec such as s3://bucket/run1. It
            must hold nothing else. All machines must see it, unless `per_node` is set. The first save makes it.
          model: A Keras model. It must be built when it is saved or restored.
          optimizer: The `DistributedOptimizer` that trains the model.
          keep: How many checkpoints to keep, at least 1. Checkpoints that these build on are kept, too.
          incremental: Save only what has changed in the tables since the checkpoint before, where that is known and
            not too many increments follow each other.
          background: Write the files while training continues. False: `save` returns when the checkpoint is on the
            disk.
          per_node: Every machine has a directory of its own at this path, which holds what its ranks restore. False:
            all machines see one directory, and each writes a part of every checkpoint.
          staging: With a URL: a folder on a disk of each machine, for files that are uploaded or restored. None: the
            folder of temporary files (TMPDIR).
          extra: Variables to save as well, by name.

        Raises:
          TypeError: `optimizer` is not a `DistributedOptimizer`, `directory` is not a path, or an extra is not a
            variable.
          ValueError: `keep` is not a positive integer; `per_node` is set with a URL, or `staging` with a path.
          UnsupportedError: A tf.distribute strategy trains the model; the URL cannot be opened, for example because a
            package is missing.
          OSError: The URL cannot be listed.
        """
        if not isinstance(optimizer, DistributedOptimizer):
            raise TypeError(
                f"Checkpointer needs a tsps.DistributedOptimizer. Received: optimizer={type(optimizer).__name__}"
            )
        check_arguments(directory, keep, extra)
        self._directory = open_directory(directory, staging, per_node=bool(per_node))
        self._ranks = collectives_lib.resolve(optimizer.collectives)
        strategy = collectives_lib.active_strategy()
        if self._ranks.kind == "tf.distribute" or (strategy is not None and strategy.num_replicas_in_sync > 1):
            raise UnsupportedError(
                "Checkpointer does not work under a tf.distribute strategy: the strategy distributes the datasets, and "
                "cannot resume them in the middle of an epoch. Use Horovod's ranks, or collectives='tensorflow'"
            )
        self.directory = self._directory.name
        self._background = bool(background)
        self._saver = Saver(
            self._directory,
            self._ranks,
            keep=keep,
            incremental=bool(incremental),
            background=self._background,
            per_node=bool(per_node),
        )
        self._state = JobState(model, optimizer, extra or {}, self._ranks)
        self.position = self._state.position
        self._restorer = Restorer(self._directory, self._state, self._saver)
        self._restored: Restored | None = None
        self._saved_at: tuple[int, int] | None = None  # what `JobState.changes` was at the last save or restore
        self._resumable: ResumableDataset | None = None  # its dataset needs it

    # --- saving ---

    def save(self, step: int | None = None) -> str:
        """Saves the job as it is, and removes old checkpoints. Every rank calls it, between the same two steps.

        The method drains the schedule, waits for the save before, copies the dense weights, and returns. One rank of
        each machine then writes the files, while training continues. `wait` returns when they are on the disk.

        Args:
          step: The number that the folder is named after. None: the number of the optimizer's updates.

        Returns:
          The folder that the checkpoint will be. With `per_node` it is this machine's; other machines may use another
          name.

        Raises:
          NotSavedError: On all ranks: this save, or the one before, could not be written. The message has the reason.
            Earlier checkpoints are there, and the job is unchanged: the next save may work.
          StateError: On all ranks: the directory has checkpoints, and `restore` was not called; tables are of
            different steps, or are trained by another optimizer.
          ValueError: On all ranks: ranks are at different steps; the model is not built; `step` is below that of an
            existing checkpoint.
        """
        if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
            raise ValueError(f"`step` must be an integer of at least 0. Received: step={step!r}")
        with activity.doing(f"saving a checkpoint to {self.directory}"):
            self.wait()
            self._state.optimizer.drain()
            bindings, entries = self._state.tables(), self._state.variables()
            self._refuse_other_optimizers(bindings)
            self._make_ranks_equal(bindings, entries)
            content = self._make_manifest(step, bindings, entries)

            def copy_values(keep: bool) -> list[Copies]:
                values: list[Copies] = [variables.Values(entries, self._ranks, keep=keep)]
                if self._state.callbacks is not None:
                    values.append(self._state.callbacks.capture(self._ranks, keep=keep))
                return values

            path = self._saver.begin(content.step if step is None else step, content, bindings, copy_values)
            self._saved_at = self._state.changes()
            return path

    def _make_ranks_equal(self, bindings: Sequence[TableBinding], entries: Sequence[variables.Entry]) -> None:
        """Does before the first step what that step would do: one rank alone may have loaded rows and weights.

        Otherwise this checkpoint would have rows that only some nodes have.

        Raises:
          ValueError: On all ranks: their variables differ, and the optimizer's `broadcast` is False.
        """
        initial_sync = step_builder_of(self._state.optimizer).initial_sync
        if not initial_sync.pending:
            return
        initial_sync.make([entry.variable for entry in entries], computed=False)
        if bindings:
            reconcile(self._ranks, job.current(), bindings, initial_sync.root)

    def _make_manifest(
        self, step: int | None, bindings: Sequence[TableBinding], entries: Sequence[variables.Entry]
    ) -> Manifest:
        """Compares the ranks' steps and positions, and returns a manifest without `name`, `chain` and `files`.

        Raises:
          ValueError: On all ranks: they differ.
        """
        per_node = self._saver.per_node
        table_step = tables.committed_step() if bindings else 0
        updates, epoch, batch = self._state.updates(), self.position.epoch, self.position.batch
        facts = {
            "call": f"saving a checkpoint to {'a directory of each node' if per_node else self.directory}",
            "step": str(step),
            "updates made": str(updates),
            "step of the tables": str(table_step),
            "epoch": str(epoch),
            "batch": str(batch),
            "number of tables": str(len(bindings)),
            "in the background": str(self._background),
        }
        must_agree(self._ranks.allgather_object(facts, "tsps.checkpoint.save"))
        ids = (secrets.token_hex(8), self._saver.run)
        checkpoint_id, run = self._ranks.broadcast_object(ids, 0, "tsps.checkpoint.ids")
        this_job = job.current() if bindings or per_node else None
        return Manifest(
            name="",
            step=updates,
            table_step=table_step,
            epoch=epoch,
            batch=batch,
            ranks=self._ranks.size,
            nodes=1 if this_job is None else len(this_job.leaders),
            job=this_job.identity.name if this_job is not None and bindings else None,
            id=checkpoint_id,
            run=run,
            chain=(),
            versions=_keras.software_versions(),
            tables=tuple(tables.facts(bindings)),
            variables=tuple(entry.facts() for entry in entries),
            files=(),
            optimizer=OptimizerIdentity.of(self._state.optimizer.inner_optimizer).number,
            node=this_job.node if this_job is not None and per_node else None,
        )

    def _refuse_other_optimizers(self, bindings: Sequence[TableBinding]) -> None:
        identity = OptimizerIdentity.of(self._state.optimizer.inner_optimizer)
        names = [binding.config.name for binding in bindings if identity.trains_beside(binding.trained_by()[0])]
        if names:
            raise StateError(
                f"tables {names} are trained by another optimizer than the Checkpointer's. Its variables would be "
                "missing in the checkpoint. Train all tables of a model with one optimizer"
            )

    def wait(self) -> None:
        """Waits until the last save is on the disk. Every rank calls it, between the same two steps.

        Raises:
          NotSavedError: On all ranks: the save could not be written. The message has the reason. It is raised once.
        """
        try:
            self._saver.wait()
        except NotSavedError:
            self._saved_at = None
            raise

    @property
    def is_saving(self) -> bool:
        """Whether this process is writing a checkpoint in the background. Only one rank of each machine writes."""
        return self._saver.is_saving

    @property
    def unsaved(self) -> bool:
        """Whether steps have been made, or rows have been erased, since the last `save` or `restore`."""
        return self._saved_at != self._state.changes()

    # --- restoring ---

    def latest(self) -> str | None:
        """Finds the newest checkpoint that is whole. Any rank may call it alone.

        The method first waits for what this process is writing, and then reads all files of the checkpoint. A warning
        names each newer checkpoint that is damaged, with the reason.

        Returns:
          The folder of the checkpoint, or None. With `per_node` it is the newest of this machine; `restore` takes the
          newest that all machines have.
        """
        self._saver.finish_own()
        checkpoint, _ = newest.newest(self._directory)
        return None if checkpoint is None else checkpoint.shown

    def restore(self, *, allow: Collection[str] = (), renames: Mapping[str, str] | None = None) -> str | None:
        """Restores the newest whole checkpoint. Every rank calls it, before the first step.

        The tables with their slots, the dense weights, the optimizer and the position become what the checkpoint holds.
        That includes tables that a named job (TFSPS_JOB) has left at another step. The checkpoint may have been saved
        by another number of ranks or machines, and with another placement or storage of the tables.

        With `allow` or `renames`, the model may differ from the one that was saved. Tables and variables are then
        matched by their names. What is new begins with initial values, and `report` says what was restored.

        Args:
          allow: The differences that are accepted, some of "added_tables", "removed_tables", "added_variables",
            "removed_variables", "changed_variables" (dense variables of another shape or type, which are initialized)
            and "other_order" (of names; the other values include it). Optimizer variables follow the weight that they
            belong to. A difference that does not occur is no error. All ranks give the same.
          renames: The names that tables have now, by their names in the checkpoint.

        Returns:
          The folder of the checkpoint. None if there is no checkpoint: the job is then unchanged.

        Raises:
          StateError: On all ranks: training has begun; a rank does not see the checkpoint; its parts are of different
            steps; or there is no checkpoint, and a named job left tables at another step than the optimizer's.
          ValueError: On all ranks: the checkpoint is of another model or optimizer, and `allow` does not accept that;
            the ranks give different `allow` or `renames`; or one of them has an unknown value.
          TypeError: `allow` is no collection of strings, or `renames` no dict of strings.
        """
        allowance = Allowance.of(allow, renames)
        with activity.doing(f"restoring a checkpoint of {self.directory}"):
            try:
                self.wait()
            except NotSavedError as error:
                warnings.warn(str(error), stacklevel=2)
            self._restored = self._restorer.restore(allowance)
            if self._restored is None:
                return None
            self._saved_at = self._state.changes()
            return self._directory.shown(self._restored.path)

    @property
    def report(self) -> RestoreReport | None:
        """A list of what the last `restore` has restored, initialized and dropped; None: it has restored nothing."""
        return None if self._restored is None else self._restored.report

    # --- data ---

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
        """Returns the batches of the current epoch. After `restore`, batches that were trained before are left out.

        Each time that the dataset is iterated, it has the batches of the epoch that `epochs` is at. To leave batches
        out, it reads and skips them.

        A Python loop over the dataset counts the batches that it takes, whatever it does with them: several may make
        one update, and a refused batch counts too. In a `tf.function`, or after further transformations of tf.data,
        each update of the optimizer counts as one batch.

        Args:
          x: A function, a `tf.data.Dataset`, or arrays, as for `tsps.callbacks.Checkpoint.dataset`. A function
            `make(epoch)`, with epochs from 0 on, returns a `tf.data.Dataset` of this rank's batches of the epoch. The
            same epoch must give the same batches in the same order. If you shuffle, derive the seed from the epoch.
          y, sample_weight, batch_size, shuffle, seed: With arrays: as for the callback.

        Returns:
          A dataset of unknown cardinality. `tsps.lookahead` may be applied to it.

        Raises:
          TypeError: `make(0)` does not return a `tf.data.Dataset`, or `x` has none of these forms.
          ValueError: Arrays have different numbers of samples, or no sample; the dataset is infinite; or an argument
            for arrays was given with a function or a dataset.
        """
        self._resumable = ResumableDataset(batches_of(x, y, sample_weight, batch_size, shuffle, seed), self.position)
        return self._resumable.dataset

    def epochs(self, n: int) -> Iterator[int]:
        """Yields the epochs that are left. An epoch has ended when the body of the loop has.

        Args:
          n: The number of epochs of the whole job.
        """
        while self.position.epoch < n:
            yield self.position.epoch
            self.position.end_epoch()


def check_arguments(directory: Any, keep: Any, extra: Any) -> None:
    """Checks arguments of `Checkpointer`.

    Raises:
      TypeError, ValueError: One of them cannot be used.
    """
    if not isinstance(directory, str | os.PathLike):
        raise TypeError(f"`directory` must be a path. Received: directory={directory!r}")
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise ValueError(f"`keep` must be an integer of at least 1. Received: keep={keep!r}")
    if extra is not None and not isinstance(extra, Mapping):
        raise TypeError(f"`extra` must be a dict of variables by name. Received: extra={extra!r}")
    for name, variable in (extra or {}).items():
        if not isinstance(_keras.tf_variable(variable) if hasattr(variable, "value") else variable, tf.Variable):
            raise TypeError(f"extra[{name!r}] must be a variable. Received: {type(variable).__name__}")
