"""Finds the checkpoint that a job begins with: all of its ranks look, and agree on one.

In a directory that all machines see, rank 0 chooses the newest whole checkpoint. If each node has a directory, the
ranks choose the newest that all nodes have, by its id.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps import job
from tf_sparse_ps.checkpoints import stored_checkpoint
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.saver import WRITER
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import all_or_none, error_text, raise_failures, raising_on_all
from tf_sparse_ps.collectives.timeout import timeout_s
from tf_sparse_ps.errors import DamagedFileError, NotFoundError, StateError
from tf_sparse_ps.table.progress import bar

_WAIT_S = 5.0


class Chosen(NamedTuple):
    """The checkpoint that a job begins with."""

    checkpoint: StoredCheckpoint | None
    """None: there is none that is whole."""
    is_read: bool
    """All of its files have been read, and are whole. False: those with rows have not been read."""
    passed_over: list[Path]
    """Checkpoints that are damaged, or that other nodes lack; on the rank that writes to the directory."""


def newest(directory: CheckpointDirectory) -> tuple[StoredCheckpoint | None, list[Path]]:
    """`CheckpointDirectory.newest`, with a progress bar."""
    with bar(0, f"check {directory.name}") as progress:
        return directory.newest(lambda _, n: progress.update(n))


def agree(directory: CheckpointDirectory, ranks: Collectives, *, read_once: bool) -> Chosen:
    """Agrees on the newest whole checkpoint of a directory that all machines see. Every rank calls it.

    Args:
      directory: The directory.
      ranks: The job's collectives.
      read_once: Files with rows need not be read, if there is another checkpoint to go back to.

    Raises:
      StateError: On all ranks: one does not see the checkpoint; or there are checkpoints, and none is whole.
      UnsupportedError: On all ranks: the checkpoint is of a later version of the format.
    """
    checkpoint: StoredCheckpoint | None = None
    is_read, passed_over = True, list[Path]()
    error: Exception | None = None
    if directory.is_remote:
        directory.node = job.current().node

    def look() -> None:
        nonlocal checkpoint, passed_over, is_read
        if read_once or directory.is_remote:
            with bar(0, f"check {directory.name}") as progress:
                checkpoint, passed_over, is_read = directory.newest_to_read_once(lambda _, n: progress.update(n))
        else:
            checkpoint, passed_over = newest(directory)
        if checkpoint is None and (names := _trained(directory)):
            raise StateError(
                f"{directory.name} has checkpoints, {', '.join(names[:5])}, and none of them is whole. To start from "
                "initial values, use another directory, and another TFSPS_JOB if the job has a name"
            )

    is_writer = ranks.rank == WRITER
    if directory.is_remote:
        error = _patiently(ranks, look if is_writer else None)
    elif is_writer:
        try:
            look()
        except Exception as caught:
            error = caught
    choice = None if checkpoint is None else (checkpoint.path.name, checkpoint.manifest_bytes)
    message = (error_text(error), choice, is_read)
    text, choice, is_read = ranks.broadcast_object(message, WRITER, "tsps.checkpoint.newest")
    if text is not None:
        raise_failures([text], error, f"looking for checkpoints in {directory.name}")
    if choice is None:
        return Chosen(None, True, passed_over)
    name, manifest_bytes = choice
    path = directory.path / name
    if directory.is_remote:
        is_other_leader = job.current().is_leader and not is_writer
        error = _patiently(ranks, (lambda: directory.checked(name)) if is_other_leader else None)
        texts = ranks.allgather_object(error_text(error), "tsps.checkpoint.fetched")
        raise_failures(texts, error, f"restoring {directory.shown(path)}")
    with raising_on_all(ranks, f"restoring {directory.shown(path)}", "tsps.checkpoint.seen"):
        seen = _see(directory, path, manifest_bytes)
    return Chosen(seen, bool(is_read), passed_over)


def _see(directory: CheckpointDirectory, path: Path, manifest_bytes: bytes) -> StoredCheckpoint:
    with contextlib.suppress(DamagedFileError, NotFoundError):
        checkpoint = stored_checkpoint.look(path)
        if checkpoint.manifest_bytes == manifest_bytes:
            return checkpoint._replace(url=directory.shown(path) if directory.is_remote else None)
    if directory.is_remote:
        raise StateError(f"rank {WRITER} restores {directory.shown(path)}, and its copy in {path} is another one")
    raise StateError(
        f"rank {WRITER} restores {path.name}, and {path} is another one here, or is not there: all machines must see "
        "one directory, or have one each (per_node=True)"
    )


def _patiently(ranks: Collectives, work: Callable[[], object] | None) -> Exception | None:
    """Lets some ranks work in a thread. All ranks wait, without being long in one collective. Every rank calls it.

    Args:
      ranks: The job's collectives.
      work: What this rank does, or None.

    Returns:
      The error of this rank's work, or None.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            assert work is not None
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tsps-fetch", daemon=True) if work is not None else None
    if thread is not None:
        thread.start()
    longest_s = min(_WAIT_S, timeout_s() / 4)
    while True:
        if thread is not None:
            thread.join(longest_s)
        has_ended = thread is None or not thread.is_alive()
        if all(ranks.allgather_object(has_ended, "tsps.checkpoint.fetching")):
            return errors[0] if errors else None


def agree_per_node(directory: CheckpointDirectory, ranks: Collectives, *, read_once: bool) -> Chosen:
    """Agrees on the newest checkpoint that is whole on all nodes, each of which has a directory. Every rank calls it.

    Args:
      directory: This node's directory.
      ranks: The job's collectives.
      read_once: Files with rows need not be read, if there is another checkpoint to go back to.

    Returns:
      The choice, with this node's copy of the checkpoint.

    Raises:
      StateError: On all ranks: nodes have checkpoints, of more than the beginning of training, and none is whole on
        all.
      UnsupportedError: On all ranks: a checkpoint is of a later version of the format.
    """
    paths: dict[str, Path] = {}  # of this node's checkpoints, by id, the newest first
    checkpoint: StoredCheckpoint | None = None
    is_leader = job.current().is_leader
    damage: dict[Path, str] = {}  # why checkpoints of this node are passed over

    def list_checkpoints() -> tuple[list[str], list[str]]:
        trained = _trained(directory)
        for folder in directory.find():
            with _noting_damage(folder.path, damage):
                paths.setdefault(stored_checkpoint.look(folder.path).manifest.id, folder.path)
        return list(paths), trained

    def is_whole(path: Path, *, rows: bool) -> bool:
        nonlocal checkpoint
        checkpoint = None
        with _noting_damage(path, damage):
            checkpoint = _check(path, rows=rows) if is_leader else stored_checkpoint.look(path)
        return checkpoint is not None

    call = f"looking for checkpoints in {directory.path}"
    lists = all_or_none(ranks, list_checkpoints, call, "tsps.checkpoint.newest")
    common_ids = [id_ for id_ in lists[WRITER][0] if all(id_ in ids for ids, _ in lists)]
    is_read, chosen_id = True, None
    for number, id_ in enumerate(common_ids):
        is_read = not read_once or number == len(common_ids) - 1
        check = functools.partial(is_whole, paths[id_], rows=is_read)
        if all(all_or_none(ranks, check, f"looking at {paths[id_]}", "tsps.checkpoint.is_whole")):
            chosen_id = id_
            break
    for id_, path in paths.items():
        if id_ == chosen_id:
            break
        is_common = id_ in common_ids
        damage.setdefault(path, "it is damaged on another node" if is_common else "another node does not have it")
    if is_leader:
        for path, reason in damage.items():
            warnings.warn(f"checkpoint {path} is passed over: {reason}", stacklevel=4)
    if chosen_id is None:
        reasons = {path.name: reason for path, reason in damage.items()}
        all_reasons = ranks.allgather_object(reasons, "tsps.checkpoint.none")
        if any(trained for _, trained in lists):
            shown = {f"node {node}": all_reasons[leader] for node, leader in enumerate(job.current().leaders)}
            raise StateError(
                f"no checkpoint in {directory.path} is whole on all nodes: {shown}. Give the job the machines, or the "
                "directories, that it had. To start from initial values, remove these checkpoints"
            )
        checkpoint = None
    return Chosen(checkpoint, is_read, list(damage) if is_leader else [])


@contextlib.contextmanager
def _noting_damage(path: Path, damage: dict[Path, str]) -> Iterator[None]:
    """Surrounds reading a checkpoint. If it is damaged, notes why instead of raising."""
    try:
        yield
    except Exception as error:
        if not stored_checkpoint.is_damage(error):
            raise
        damage[path] = str(error)


def _trained(directory: CheckpointDirectory) -> list[str]:
    """Returns the names of checkpoints, whole or not, that hold more than the beginning of training."""
    return [folder.path.name for folder in directory.find() if folder.step > 0]


def _check(path: Path, *, rows: bool) -> StoredCheckpoint:
    with bar(0, f"check {path}") as progress:
        return stored_checkpoint.check(path, lambda _, n: progress.update(n), rows=rows)
