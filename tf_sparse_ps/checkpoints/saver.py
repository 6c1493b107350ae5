"""`Saver`: the saves of one run, on all of its ranks.

A save begins with all ranks, between two steps: leaders capture what their nodes write. A thread of each leader then
writes it, without a collective. The next call of all ranks tells them how the save has ended.
"""

from __future__ import annotations

import contextlib
import secrets
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps import job
from tf_sparse_ps.checkpoints import fault_points, tables
from tf_sparse_ps.checkpoints.captured import Captured
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory, Save, SaveFolder, sees
from tf_sparse_ps.checkpoints.increments import Increments
from tf_sparse_ps.checkpoints.manifest import Link, Manifest
from tf_sparse_ps.checkpoints.save_in_progress import SaveInProgress
from tf_sparse_ps.checkpoints.writers import CheckpointWriter, Copies, PartWriter, Writer
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import error_text, raise_failures
from tf_sparse_ps.collectives.timeout import timeout_s
from tf_sparse_ps.errors import NotSavedError, PartNotSavedError, StateError, UnavailableError, WriterLockedError
from tf_sparse_ps.job.table_binding import TableBinding

WRITER = 0  # the rank that writes manifests
_ONE_DIRECTORY = ". If several machines see this directory, leave per_node=True out: each of them writes a part then"
_WAIT_S = 5.0


class Saver:
    """Begins and ends saves, on all ranks.

    Attributes:
      run: The identity of this run, for manifests.
      per_node: Every node has a directory of its own.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        ranks: Collectives,
        *,
        keep: int,
        incremental: bool,
        background: bool,
        per_node: bool,
    ) -> None:
        """Reads and writes nothing. The options are those of `Checkpointer`."""
        self._directory, self._ranks, self._keep = directory, ranks, keep
        self._background, self._increments = background, Increments(incremental)
        self._pending: _Pending | None = None
        self._may_write_in_background = True  # False after a background save that failed because of the training
        self._has_saved = False
        self._complete: Path | None = None  # the newest checkpoint that is known to be whole
        self.run = secrets.token_hex(8)
        self._passed_over: list[Path] = []
        self._has_looked = False
        self.per_node = per_node

    @property
    def is_saving(self) -> bool:
        """Whether this process is writing a checkpoint in the background. Only leaders do."""
        return self._pending is not None and self._pending.writing is not None and self._pending.writing.is_running

    def finish_own(self) -> None:
        """Waits until this process has written what it writes, but not for ever: others may have failed."""
        if self._pending is not None and self._pending.writing is not None:
            self._pending.writing.wait(timeout_s() / 4)

    def begin_with(self, checkpoint: Path | None, passed_over: list[Path]) -> None:
        """Notes what the job begins with. The directory's other checkpoints, if any, belong to this run from now on.

        Args:
          checkpoint: The checkpoint that the job begins with, or None.
          passed_over: Checkpoints that are damaged, or that other nodes lack. A save removes them.
        """
        self._has_looked, self._complete, self._passed_over = True, checkpoint, passed_over

    def forget(self) -> None:
        """Notes that the tables have other rows than were saved: the next checkpoint holds all rows."""
        self._increments.forget()

    # --- the beginning ---

    def begin(
        self,
        step: int,
        content: Manifest,
        bindings: Sequence[TableBinding],
        copy_values: Callable[[bool], Sequence[Copies]],
    ) -> str:
        """Captures what is to be saved, and begins to write it. Every rank calls it; the save before has ended.

        Args:
          step: The step that the folder is named after.
          content: The manifest without `name`, `chain` and `files`, and without the `parts` of tables.
          bindings: The tables.
          copy_values: Copies the dense values of all ranks. Its argument says whether this rank writes them.

        Returns:
          The folder that the checkpoint will be; with `per_node`, on this node.

        Raises:
          NotSavedError, StateError, ValueError: On all ranks.
        """
        this_job = job.current() if bindings or self.per_node else None
        node = 0 if this_job is None else this_job.node
        leaders = [WRITER] if this_job is None else this_job.leaders
        self._directory.node = node
        is_leader = self._ranks.rank in leaders
        opener = leaders[node] if self.per_node else WRITER
        values = copy_values(self._ranks.rank == opener)
        with contextlib.ExitStack() as within:
            save, builds_on = self._open(within, step, content, opener)
            captured: list[Captured] = []
            marks: dict[str, str] = {}
            error: Exception | None = None
            if is_leader:
                try:
                    if not save.is_seen():
                        # If this node has seen the directory before, it is a matter of this moment.
                        raise (UnavailableError if self._has_saved else StateError)(
                            f"rank {WRITER} writes {save.folder.name} in {self._directory.name}, and it is not there: "
                            "all machines must see one directory, or have one each (per_node=True)"
                        )
                    within.enter_context(save.staged())
                    marks = tables.mark_changes(bindings)
                    since = self._increments.marks if builds_on else {}
                    captured = tables.capture(bindings, since, content.table_step, split=not self.per_node)
                    fault_points.reach(fault_points.CAPTURED)
                except Exception as caught:
                    error = caught
            try:
                self._raise_together(error, content.step, "tsps.checkpoint.captured")
            except Exception:
                for table in captured:
                    table.close()
                raise
            writing: SaveInProgress | None = None
            if is_leader:
                writer: Writer = PartWriter(save, node, captured, content.stamp)
                if isinstance(save, Save):
                    others = () if self.per_node else range(1, len(leaders))
                    first, then = (self._prune_before, None) if self.per_node else (None, self._prune)
                    writer = CheckpointWriter(
                        save, content, builds_on, values, captured, others, first=first, then=then
                    )
                quiet = self._ranks.rank != WRITER and not self.per_node
                writing = SaveInProgress(save, within.pop_all(), writer, captured, quiet=quiet)
        in_background = self._background and self._may_write_in_background
        self._pending = _Pending(content.step, save.path, writing, marks)
        self._has_looked = True
        if writing is not None:
            writing.start(in_background=in_background)
        if not in_background:
            self.wait()
        return save.shown

    def _open(
        self, within: contextlib.ExitStack, step: int, content: Manifest, opener: int
    ) -> tuple[SaveFolder, tuple[Link, ...]]:
        """Makes the folder that is written to.

        Args:
          within: Gets the context that surrounds the save.
          step: The step that the folder is named after.
          content: The manifest.
          opener: The rank that makes the folder to which this rank's node writes. It may be this rank.

        Returns:
          The folder, a `Save` on the rank that has made it; and the chain that the checkpoint builds on, which is empty
          if it holds all rows on any node.
        """
        error: Exception | None = None
        save: SaveFolder | None = None
        builds_on: tuple[Link, ...] = ()
        if self._ranks.rank == opener:
            try:
                self._refuse_other_runs(step)
                save = within.enter_context(self._directory.saving(step, f"rank {opener}"))
                builds_on = self._increments.next_builds_on(self._directory)
            except WriterLockedError as caught:
                error = WriterLockedError(f"{caught}{_ONE_DIRECTORY}") if self.per_node else caught
            except Exception as caught:
                error = caught
        self._raise_together(error, content.step, "tsps.checkpoint.begin")
        chain = [(link.name, link.id) for link in builds_on]
        names = None if save is None else (save.folder.name, save.name)
        opened = self._ranks.allgather_object((names, chain), "tsps.checkpoint.opened")
        all_names = [names for names, _ in opened if names is not None]
        if save is not None and len(all_names) > 1:
            try:
                if sum(sees(self._directory.path / folder, 0) for folder, _ in all_names) > 1:
                    error = StateError(f"another node's save is in {self._directory.name}{_ONE_DIRECTORY}")
            except OSError as caught:
                error = caught
        self._raise_together(error, content.step, "tsps.checkpoint.seen")
        (folder, name), chain = opened[opener]
        if save is None:
            save = self._directory.joined(folder, name)
        if not all(chain for names, chain in opened if names is not None):
            return save, ()
        return save, tuple(Link(*link) for link in chain)

    # --- the end ---

    def wait(self) -> None:
        """Waits until the last save is on the disk. Every rank calls it, between the same two steps.

        Raises:
          NotSavedError: On all ranks: the save could not be written. The message has the reason. It is raised once.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        error: Exception | None = None
        texts: dict[int, str] = {}  # errors, by rank
        causes: list[int] = []  # ranks that have not failed because of another rank, the first one first
        self._may_write_in_background = True
        has_ended = pending.writing is None
        # A slow disk is not a lost rank: no rank waits in one collective for long.
        longest_s = min(_WAIT_S, timeout_s() / 4)
        while True:
            if not has_ended:
                assert pending.writing is not None
                if has_ended := pending.writing.wait(longest_s):
                    error = pending.writing.result()
            written = pending.writing.manifest if has_ended and pending.writing is not None else None
            kind = (isinstance(error, PartNotSavedError), isinstance(error, UnavailableError))
            status = (has_ended, written is not None, error_text(error), kind)
            statuses = self._ranks.allgather_object(status, "tsps.checkpoint.end")
            for rank, (*_, text, (of_another, unavailable)) in enumerate(statuses):
                if text is not None and rank not in texts:
                    texts[rank] = text
                    if not of_another:
                        causes.append(rank)
                        self._may_write_in_background &= not unavailable
            if texts and pending.writing is not None:
                pending.writing.stop()
            if all(ended for ended, *_ in statuses):
                break
        is_there = any(there for _, there, *_ in statuses)
        rank = next(iter(causes or texts), WRITER)
        text = _with_rank(rank, texts[rank]) if texts else None
        if text is not None and is_there and not self.per_node:  # the checkpoint is whole, whatever failed after that
            warnings.warn(f"checkpoint {self._directory.shown(pending.path)} was saved, and then: {text}", stacklevel=4)
        elif text is not None:
            if self.per_node and pending.path.exists():  # the other nodes do not have it
                self._passed_over.append(pending.path)
            raise self._not_saved(pending.step, text) from error
        self._increments.saved(written, pending.marks)
        self._has_saved = True
        self._complete = pending.path

    def _prune_before(self) -> None:
        """Removes the checkpoints before the previous one, which all nodes have, if each node has a directory."""
        if self._complete is not None:
            self._prune(self._complete)

    def _prune(self, saved: Path) -> None:
        try:
            self._directory.prune(saved, self._keep, self._passed_over)
            self._passed_over = [path for path in self._passed_over if self._directory.has(path)]
        except OSError as error:  # the checkpoint is there; the next save tries again
            warnings.warn(f"old checkpoints in {self._directory.name} could not be removed: {error}", stacklevel=4)

    # --- errors ---

    def _raise_together(self, error: Exception | None, step: int, name: str) -> None:
        """Raises an error of one rank on all ranks."""
        errors = self._ranks.allgather_object((error_text(error), _is_temporary(error)), name)
        failures = [(rank, text, temporary) for rank, (text, temporary) in enumerate(errors) if text is not None]
        if failures and all(temporary for *_, temporary in failures):
            rank, text, _ = failures[0]
            raise self._not_saved(step, _with_rank(rank, text)) from error
        raise_failures([text for text, _ in errors], error, f"saving a checkpoint to {self._directory.name}")

    def _not_saved(self, step: int, text: str) -> NotSavedError:
        return NotSavedError(f"a checkpoint of step {step} was not saved to {self._directory.name}: {text}")

    def _refuse_other_runs(self, step: int) -> None:
        """Refuses to mix checkpoints of another run with those of this one, or to remove them.

        Raises:
          StateError: The directory has checkpoints, and this run did not look for them.
          ValueError: The directory has a checkpoint of a later step.
        """
        directory = self._directory.name
        others = [folder for folder in self._directory.find() if folder.path not in self._passed_over]
        if others and not self._has_looked:
            raise StateError(
                f"{directory} has checkpoints, {others[0].path.name} and {len(others) - 1} more, and this job did "
                "not begin with them: call restore() before the first step, or use another directory"
            )
        if others and step < others[0].step:
            raise ValueError(
                f"{directory} has a checkpoint of step {others[0].step}, and this one is of step {step}: the "
                "newest is found by its step"
            )


class _Pending(NamedTuple):
    """A save whose end has not been told to all ranks."""

    step: int
    """The number of updates that the optimizer had made."""
    path: Path
    """The folder of the checkpoint; of this node's, where each has its own."""
    writing: SaveInProgress | None
    """The thread, on leaders."""
    marks: dict[str, str]
    """The marks of the tables, on leaders."""


def _with_rank(rank: int, text: str) -> str:
    """Names the rank of an error, unless it is the one that writes manifests."""
    return text if rank == WRITER else f"rank {rank}: {text}"


def _is_temporary(error: BaseException | None) -> bool:
    """Whether an error is a matter of the disk, or of this moment, and not of the program."""
    return isinstance(error, OSError | UnavailableError)
