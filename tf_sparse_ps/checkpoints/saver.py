"""`Saver`: the saves of one run, on all of its ranks.

Each begins with all ranks, between two steps: leaders capture what their nodes are to write. It goes on in a thread of
each leader, without another word. The next call of all ranks tells them how it has ended.
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
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory, Save, sees
from tf_sparse_ps.checkpoints.increments import Increments
from tf_sparse_ps.checkpoints.manifest import Link, Manifest
from tf_sparse_ps.checkpoints.save_in_progress import SaveInProgress
from tf_sparse_ps.checkpoints.writers import CheckpointWriter, Copies, PartWriter, Writer
from tf_sparse_ps.collectives import Collectives, protocol
from tf_sparse_ps.errors import NotSavedError, StateError, UnavailableError, WriterLockedError
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers.sharded_content import raise_failed, text_of

WRITER = 0  # the rank that writes manifests
_ONE_DIRECTORY = ". If several machines see this directory, per_node=True is to be left out: each writes a part then"
_WAIT_S = 5.0


class Saver:
    """Begins saves, and ends them, on all ranks.

    Attributes:
      run: Tells this run from others, in manifests.
      passed_over: Checkpoints of the directory that are damaged; a save removes them.
      has_looked: The other checkpoints of the directory, if any, are this run's.
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
        """Reads and writes nothing. Arguments as of `Checkpointer`."""
        self._directory, self._ranks, self._keep = directory, ranks, keep
        self._background, self._increments = background, Increments(incremental)
        self._pending: _Pending | None = None
        self._beside = True  # that the last save beside training did not fail because of the training
        self.run = secrets.token_hex(8)
        self.passed_over: list[Path] = []
        self.has_looked = False
        self.per_node = per_node

    @property
    def is_saving(self) -> bool:
        """Whether this process is writing, beside whatever else it does. On leaders alone."""
        return self._pending is not None and self._pending.writing is not None and self._pending.writing.is_running

    def finish_own(self) -> None:
        """Waits until this process has written what it writes; how that has ended is not told yet."""
        if self._pending is not None and self._pending.writing is not None:
            self._pending.writing.wait()

    def forget(self) -> None:
        """The tables have become others: the next checkpoint has all rows."""
        self._increments.forget()

    # --- the beginning ---

    def begin(
        self,
        step: int,
        content: Manifest,
        bindings: Sequence[TableBinding],
        capture_values: Callable[[bool], Sequence[Copies]],
    ) -> str:
        """Captures what is to be saved, and begins to write it. Every rank calls it; the save before has ended.

        Args:
          step: That the folder is named after.
          content: The manifest, but for `name`, `chain`, `files`, and what tables have become.
          bindings: Of its tables.
          capture_values: Copies dense values of all ranks; its argument says whether this rank is to write them.

        Returns:
          The folder that the checkpoint will be; with `per_node`, on this node.

        Raises:
          NotSavedError, StateError, ValueError: On all ranks.
        """
        this_job = job.current() if bindings or self.per_node else None
        node = 0 if this_job is None else this_job.node
        leaders = [WRITER] if this_job is None else this_job.leaders
        leads = self._ranks.rank in leaders
        writes = leads if self.per_node else self._ranks.rank == WRITER
        values = capture_values(writes)
        with contextlib.ExitStack() as within:
            save, builds_on = self._open(within, step, content, leaders[node] if self.per_node else WRITER, writes)
            captured: list[Captured] = []
            marks: dict[str, str] = {}
            error: Exception | None = None
            if leads:
                try:
                    if not sees(save.folder):
                        raise StateError(
                            f"rank {WRITER} writes to {save.folder}, which is not there: all machines must see one "
                            "directory, or have one each (per_node=True)"
                        )
                    marks = tables.mark_changes(bindings)
                    since = self._increments.marks if builds_on else {}
                    captured = tables.capture(bindings, since, content.table_step, split=not self.per_node)
                    fault_points.reach(fault_points.CAPTURED)
                except Exception as caught:
                    error = caught
            try:
                self._raise_together(error, content.step, "tsps.checkpoint.captured")
            except Exception:
                for one in captured:
                    one.close()
                raise
            writing: SaveInProgress | None = None
            if leads:
                writer: Writer = PartWriter(save, node, captured, content.stamp)
                if writes:
                    others = () if self.per_node else range(1, len(leaders))
                    prune = None if self.per_node else self._prune
                    writer = CheckpointWriter(save, content, builds_on, values, captured, others, prune)
                quiet = self._ranks.rank != WRITER
                writing = SaveInProgress(save, within.pop_all(), writer, captured, quiet=quiet)
        beside = self._background and self._beside
        self._pending = _Pending(content.step, save.path, writing, marks)
        self.has_looked = True
        if writing is not None:
            writing.start(beside=beside)
        if not beside:
            self.wait()
        return str(save.path)

    def _open(
        self, within: contextlib.ExitStack, step: int, content: Manifest, opens: int, writes: bool
    ) -> tuple[Save, tuple[Link, ...]]:
        """Makes the folder that is to be written to.

        Args:
          within: That closes it.
          step: That it is named after.
          content: Of the manifest.
          opens: The rank that makes this rank's folder.
          writes: Whether this rank makes one.

        Returns:
          The save, and what it builds on: nothing, if on any node it has all rows.
        """
        error: Exception | None = None
        save: Save | None = None
        builds_on: tuple[Link, ...] = ()
        if writes:
            try:
                self._refuse_other_runs(step)
                save = within.enter_context(self._directory.saving(step, f"rank {self._ranks.rank}"))
                builds_on = self._increments.next_builds_on(self._directory.path)
            except WriterLockedError as caught:
                error = StateError(f"{caught}{_ONE_DIRECTORY}") if self.per_node else caught
            except Exception as caught:
                error = caught
        self._raise_together(error, content.step, "tsps.checkpoint.begin")
        chain = [(one.name, one.id) for one in builds_on]
        names = None if save is None else (save.folder.name, save.name)
        everyone = self._ranks.allgather_object((names, chain), "tsps.checkpoint.opened")
        if writes and sum(made is not None and sees(self._directory.path / made[0], 0) for made, _ in everyone) > 1:
            error = StateError(
                f"rank {self._ranks.rank} sees another node's save in {self._directory.path}{_ONE_DIRECTORY}"
            )
        self._raise_together(error, content.step, "tsps.checkpoint.seen")
        (folder, name), theirs = everyone[opens]
        if save is None:
            save = Save(self._directory.path / folder, self._directory.path / name)
        if not all(one for made, one in everyone if made is not None):
            return save, ()
        return save, tuple(Link(*one) for one in theirs)

    # --- the end ---

    def wait(self) -> None:
        """Waits until the last save is on the disk. Every rank calls it, between the same two steps.

        Raises:
          NotSavedError: On all ranks: it could not be written, with the reason. Only once.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        self._beside = True
        error: Exception | None = None
        text: str | None = None
        has_ended = pending.writing is None
        # A slow disk is no lost rank: none waits for another for long at a time.
        longest_s = min(_WAIT_S, protocol.timeout_s() / 4)
        while True:
            if not has_ended:
                assert pending.writing is not None
                if has_ended := pending.writing.wait(longest_s):
                    error = pending.writing.result()
            own = (has_ended, text_of(error), isinstance(error, UnavailableError))
            everyone = self._ranks.allgather_object(own, "tsps.checkpoint.end")
            if text is None:  # what one has failed with first is the reason
                text = _first([theirs for _, theirs, _ in everyone])
                self._beside = not any(unavailable for *_, unavailable in everyone)
                if text is not None and pending.writing is not None:
                    pending.writing.give_up()
            if all(ended for ended, *_ in everyone):
                break
        written = None if pending.writing is None else pending.writing.manifest
        if text is not None:
            if written is not None:  # the other nodes do not have it
                self._claimed(lambda: self._directory.remove(pending.path))
            raise self._not_saved(pending.step, text) from error
        self._increments.saved(written, pending.marks)
        if self.per_node and written is not None:
            self._claimed(lambda: self._prune(pending.path))

    def _claimed(self, action: Callable[[], None]) -> None:
        try:
            with self._directory.claimed(f"rank {self._ranks.rank}"):
                action()
        except OSError as error:
            warnings.warn(f"checkpoints in {self._directory.path} could not be removed: {error}", stacklevel=4)

    def _prune(self, saved: Path) -> None:
        try:
            self._directory.prune(saved, self._keep, self.passed_over)
            self.passed_over = [one for one in self.passed_over if one.exists()]
        except OSError as error:  # the checkpoint is there; the next save tries again
            warnings.warn(f"old checkpoints in {self._directory.path} could not be removed: {error}", stacklevel=4)

    # --- errors ---

    def _raise_together(self, error: Exception | None, step: int, name: str) -> None:
        """Raises an error of one rank on all."""
        everyone = self._ranks.allgather_object((text_of(error), _of_files(error)), name)
        if all(of_files for text, of_files in everyone if text is not None):
            text = _first([text for text, _ in everyone])
            if text is not None:
                raise self._not_saved(step, text) from error
        raise_failed([text for text, _ in everyone], error, f"saving a checkpoint to {self._directory.path}")

    def _not_saved(self, step: int, text: str) -> NotSavedError:
        return NotSavedError(f"a checkpoint of step {step} was not saved to {self._directory.path}: {text}")

    def _refuse_other_runs(self, step: int) -> None:
        """Checkpoints that this run knows nothing of are not to be mixed with its own, or removed."""
        directory = self._directory.path
        others = [one for one in self._directory.find() if one.path not in self.passed_over]
        if others and not self.has_looked:
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
    """Updates that the optimizer had made."""
    path: Path
    """Of the checkpoint; of this node's, where each has its own."""
    writing: SaveInProgress | None
    """On leaders."""
    marks: dict[str, str]
    """On leaders, of the tables."""


def _first(texts: Sequence[str | None]) -> str | None:
    """Of errors of ranks the first, with its rank if that is not the one that writes manifests."""
    for rank, text in enumerate(texts):
        if text is not None:
            return text if rank == WRITER else f"rank {rank}: {text}"
    return None


def _of_files(error: BaseException | None) -> bool:
    """Whether it is a matter of the disk, or of this moment, and not of the program."""
    return isinstance(error, OSError | UnavailableError)
