"""`Restorer`: a job takes the state of the newest whole checkpoint, on all ranks."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras_state
from tf_sparse_ps.checkpoints import callback_states, fault_points, manifest, newest, tables, variables
from tf_sparse_ps.checkpoints.allowance import Allowance, refuse
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.job_state import JobState
from tf_sparse_ps.checkpoints.saver import Saver
from tf_sparse_ps.checkpoints.schema import RestoreReport, TableMatch, VariableMatch, shown
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint, is_damage
from tf_sparse_ps.collectives.all_or_none import UNREACHABLE, error_text, must_agree, raise_failures, raising_on_all
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.reduction.optimizer_identity import OptimizerIdentity
from tf_sparse_ps.training.distributed_optimizer import step_builder_of

_TOGETHER = "tsps.checkpoint.together"


@dataclasses.dataclass
class Restored:
    """The result of a restore.

    Attributes:
      path: The folder of the checkpoint.
      metrics: Variables of metrics, which `fit` resets when it begins.
      callback_states: The states of this rank's callbacks; None if they were not read.
      learning_rate: The value of the optimizer's learning rate variable; None if it has none.
      report: What was restored, initialized and dropped.
      is_same_model: Whether the model has the tables and variables that were saved, in the same order.
    """

    path: Path
    metrics: list[variables.Metric]
    callback_states: list[callback_states.Record] | None
    learning_rate: Any
    report: RestoreReport
    is_same_model: bool


class Restorer:
    """Restores the checkpoints of a directory. Every rank makes one, and calls its methods with the others."""

    def __init__(self, directory: CheckpointDirectory, state: JobState, saver: Saver) -> None:
        """Reads nothing.

        Args:
          directory: The directory of the checkpoints.
          state: What is restored.
          saver: Saves to the directory. The restorer reports to it which checkpoint the job begins with.
        """
        self._directory, self._state, self._saver = directory, state, saver
        self._ranks = state.ranks
        self._changes: list[str] = []  # of the tables' policies
        self._allowance = Allowance()
        self._classes: frozenset[str] = frozenset()  # of the model's layers
        self._stored_variables: Any = None  # those of the checkpoint, compared with the model
        self._report, self._is_same_model = RestoreReport(""), True
        self._written: set[int] = set()  # the ordinals of tables that were written

    def restore(self, allowance: Allowance) -> Restored | None:
        """Restores the newest whole checkpoint; see `Checkpointer.restore`.

        If there is an older checkpoint to go back to, the rows of the newest one are read once, while they are put into
        the tables. If they turn out to be damaged, the tables hold a part of them. All files are then read and checked
        before anything is changed again.

        Args:
          allowance: The differences between the model and the checkpoint that are accepted. All ranks give the same.

        Returns:
          What was restored; None if there is no checkpoint.
        """
        per_node = "yes" if self._saver.per_node else "no"
        facts = {"call": "restoring a checkpoint", "per_node": per_node, **allowance.facts()}
        must_agree(self._ranks.allgather_object(facts, "tsps.checkpoint.allow"))
        self._allowance, self._classes = allowance, self._state.layer_classes()
        bindings, entries = self._state.tables(), self._state.variables()
        with raising_on_all(self._ranks, f"restoring from {self._directory.name}", _TOGETHER):
            self._refuse_steps_before()
        try:
            restored = self._restore(bindings, entries)
            if self._directory.is_remote and restored is not None:
                self._ranks.allgather_object(None, "tsps.checkpoint.read")
        finally:
            self._directory.done_reading()
        return restored

    def _restore(self, bindings: list[TableBinding], entries: list[variables.Entry]) -> Restored | None:
        chosen = self._choose(read_once=True)
        if chosen.checkpoint is None:
            self._refuse_tables_of_other_steps(bindings)
            return None
        checkpoint = chosen.checkpoint
        if not self._restore_tables(checkpoint, bindings, entries, is_read=chosen.is_read):
            chosen = self._choose(read_once=False)
            if chosen.checkpoint is None:
                raise StateError(
                    f"no checkpoint in {self._directory.name} is whole, and the tables already hold rows of a damaged "
                    "one: training cannot resume. To start from initial values, use another directory, and another "
                    "TFSPS_JOB if the job has a name"
                )
            checkpoint = chosen.checkpoint
            self._restore_tables(checkpoint, bindings, entries, is_read=True)
        return self._restore_rest(checkpoint, bindings, entries)

    def _choose(self, *, read_once: bool) -> newest.Chosen:
        """Agrees on the checkpoint that all ranks restore."""
        agree = newest.agree_per_node if self._saver.per_node else newest.agree
        chosen = agree(self._directory, self._ranks, read_once=read_once)
        self._saver.begin_with(None if chosen.checkpoint is None else chosen.checkpoint.path, chosen.passed_over)
        return chosen

    # --- refusals ---

    def _refuse_steps_before(self) -> None:
        if step_builder_of(self._state.optimizer).begun:
            raise StateError(
                f"a checkpoint of {self._directory.name} cannot be restored: training has begun, and has made "
                f"{self._state.updates()} updates. Call restore() before the first step. In fit, give the first fit "
                "the Checkpoint callback, and further ones the same callback"
            )

    def _refuse_tables_of_other_steps(self, bindings: Sequence[TableBinding]) -> None:
        """Raises StateError, on all ranks, if a named job left tables at another step than the optimizer's."""
        with raising_on_all(self._ranks, "beginning without a checkpoint", _TOGETHER):
            if not bindings or step_builder_of(self._state.optimizer).begun:
                return
            this_job, updates = job.current(), self._state.updates()
            table_step = this_job.group.found_at_step
            if table_step not in (0, updates):
                raise StateError(
                    f"the tables of job {this_job.identity.name!r} are at step {table_step}, the optimizer is at "
                    f"{updates}, and {self._directory.name} has no checkpoint to go back to. To start from initial "
                    f"values, remove {this_job.group_path}, or use another TFSPS_JOB"
                )

    def _refuse_differing_steps(self, bindings: Sequence[TableBinding], content: manifest.Manifest) -> None:
        """Raises StateError, on all ranks, if the optimizer or the tables are not at the checkpoint's step."""
        with raising_on_all(self._ranks, f"restoring {content.name}", _TOGETHER):
            if (updates := self._state.updates()) != content.step:
                raise StateError(f"the optimizer is at step {updates} after a checkpoint of step {content.step}")
            if bindings and (table_step := tables.committed_step()) != content.table_step:
                raise StateError(f"the tables are at step {table_step} after a checkpoint of step {content.table_step}")

    # --- tables ---

    def _restore_tables(
        self,
        checkpoint: StoredCheckpoint,
        bindings: list[TableBinding],
        entries: list[variables.Entry],
        *,
        is_read: bool,
    ) -> bool:
        """Compares the model with a checkpoint, and restores the tables.

        Args:
          checkpoint: The checkpoint.
          bindings: The model's tables.
          entries: The dense variables.
          is_read: The files with rows have been read, and are whole. Otherwise damage may be found in reading them.

        Returns:
          Whether the tables hold the checkpoint's rows, the same on all ranks. If False, they hold a part of them.
          Always True if `is_read`.
        """
        stored_tables = tables.Stored(checkpoint)
        stored_variables = variables.Stored(checkpoint)

        def compare() -> None:
            expected = (self._allowance, self._classes)
            objections = [*stored_tables.check(bindings, *expected), *stored_variables.check(entries, *expected)]
            refuse(objections, self._allowance)

        if not self._are_whole(compare, checkpoint.shown, is_read=is_read):
            return False
        self._changes, self._stored_variables = stored_tables.changes, stored_variables
        self._report = _report_of(checkpoint.shown, bindings, stored_tables.match, stored_variables.match)
        self._is_same_model = not self._report.has_changes and not _are_reordered(
            stored_tables.match, stored_variables.match
        )
        fault_points.reach("compared")
        self._saver.forget()
        stored_tables.initialize(bindings, self._ranks, self._written)
        self._written = stored_tables.ordinals(bindings)
        stored_tables.restore(bindings)
        if not self._are_whole(stored_tables.check_read, checkpoint.shown, is_read=is_read):
            return False
        if bindings:
            stored_tables.set_step(self._ranks)
        return True

    def _are_whole(self, read: Callable[[], None], path: str, *, is_read: bool) -> bool:
        """Reads on all ranks, and returns on all whether there was no damage.

        Damage in files that have been read before is raised as an error, as all other errors are.
        """
        error: Exception | None = None
        try:
            read()
        except UNREACHABLE:
            raise
        except Exception as caught:
            error = caught
        # A file of another step is one that was put there, or damage.
        is_damaged = not is_read and error is not None and (isinstance(error, StateError) or is_damage(error))
        results = self._ranks.allgather_object((error_text(error), is_damaged), "tsps.checkpoint.whole")
        if all(text is None or damaged for text, damaged in results):
            if text := next((text for text, _ in results if text is not None), None):
                warnings.warn(f"checkpoint {path} is not whole, an older one is looked for: {text}", stacklevel=5)
            return text is None
        raise_failures([text for text, _ in results], error, f"restoring {path}")
        return True

    # --- dense variables, and what else there is ---

    def _restore_rest(
        self, checkpoint: StoredCheckpoint, bindings: list[TableBinding], entries: list[variables.Entry]
    ) -> Restored:
        """Restores everything but the tables."""
        state, ranks = self._state, self._ranks
        content, path = checkpoint.manifest, checkpoint.path
        rate_before = self._learning_rate()
        restored = Restored(path, [], None, None, self._report, self._is_same_model)
        with raising_on_all(ranks, f"restoring {checkpoint.shown}", _TOGETHER):
            restored.metrics = self._stored_variables.restore(entries, ranks.rank, ranks.size)
            restored.learning_rate = self._learning_rate()
            if state.callbacks is not None and manifest.CALLBACKS in content.file_names:
                restored.callback_states = callback_states.read(path, content.stamp, ranks.rank, ranks.size)
        fault_points.reach("variables_restored")
        step_builder_of(state.optimizer).initial_sync.leave_as_they_are(self._stored_variables.initialized(entries))
        if content.optimizer:
            OptimizerIdentity.of(state.optimizer.inner_optimizer).take(content.optimizer)
        state.position.go_to(content.epoch, content.batch)
        self._refuse_differing_steps(bindings, content)
        if ranks.rank == 0:
            self._print(checkpoint, rate_before, restored.learning_rate)
        return restored

    def _learning_rate(self) -> Any:
        variable = _keras_state.learning_rate_variable(self._state.optimizer.inner_optimizer)
        return None if variable is None else variable.numpy()

    def _print(self, checkpoint: StoredCheckpoint, rate_before: Any, rate: Any) -> None:
        """Prints what was restored, and warns if batches may be repeated or skipped."""
        content, path, ranks = checkpoint.manifest, checkpoint.shown, self._ranks.size
        print(
            f"tf_sparse_ps: restored {path}: step {content.step}, batch {content.batch} of epoch {content.epoch}",
            file=sys.stderr,
            flush=True,
        )
        for change in [*self._report.lines(), *self._changes]:
            print(f"tf_sparse_ps: {change}", file=sys.stderr, flush=True)
        if rate_before != rate:
            print(f"tf_sparse_ps: its learning rate is {rate:g}, not {rate_before:g}", file=sys.stderr, flush=True)
        if shifted := self._stored_variables.match.shifted:
            warnings.warn(
                f"variables were restored by their names, and the model has other layers of {', '.join(shifted)} with "
                "names that Keras numbers: a number may now belong to another layer. Name the layers that you add, and "
                "those after them",
                stacklevel=5,
            )
        if not self._is_same_model and (repeated := self._stored_variables.match.repeated):
            warnings.warn(
                f"the model is another one than was saved, and several of its variables have the name "
                f"{shown(repeated)}. These were restored by their order: check that it is the same, and give the "
                "layers different names",
                stacklevel=5,
            )
        if content.batch and content.ranks != ranks:
            warnings.warn(
                f"checkpoint {path} was saved by {content.ranks} ranks, and this job has {ranks}. Each rank resumes at "
                f"batch {content.batch} of what make({content.epoch}) gives it now, so other batches of this epoch "
                "than were trained may be skipped or repeated",
                stacklevel=5,
            )


def _are_reordered(table_match: TableMatch, match: VariableMatch) -> bool:
    places = [number for number in table_match.numbers if number is not None]
    numbers = [match.numbers[number] for number in sorted(match.numbers)]
    return places != sorted(places) or numbers != sorted(numbers)


def _report_of(
    path: str, bindings: Sequence[TableBinding], table_match: TableMatch, match: VariableMatch
) -> RestoreReport:
    names = [binding.config.name for binding in bindings]
    pairs = list(zip(names, table_match.numbers, strict=True))
    return RestoreReport(
        path,
        restored_tables=tuple(name for name, number in pairs if number is not None),
        renamed_tables=dict(table_match.renamed),
        new_tables=tuple(name for name, number in pairs if number is None),
        dropped_tables=tuple(table_match.dropped),
        restored_variables=tuple(match.restored),
        new_variables=tuple(match.new),
        changed_variables=tuple(match.changed),
        dropped_variables=tuple(match.dropped),
    )
