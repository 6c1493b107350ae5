"""Which checkpoint a job begins with: all of its ranks look, and agree on one.

Of one directory that all machines see rank 0 chooses the newest whole one. Where each node has its own, it is the
newest that all nodes have, told by its id.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps import job
from tf_sparse_ps.checkpoints import directory as directory_lib
from tf_sparse_ps.checkpoints.directory import Checked, CheckpointDirectory
from tf_sparse_ps.checkpoints.saver import WRITER
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import all_or_none, error_text, raise_failures, raising_on_all
from tf_sparse_ps.errors import DamagedFileError, NotFoundError, StateError
from tf_sparse_ps.table.progress import bar


class Chosen(NamedTuple):
    """What to begin with."""

    checkpoint: Checked | None
    """None: there is none that is whole."""
    is_read: bool
    """All of its files have been read, and are whole; else those with rows have not."""
    passed_over: list[Path]
    """Those that are damaged, or that other nodes lack; on who writes to the directory."""


def newest(directory: CheckpointDirectory) -> tuple[Checked | None, list[Path]]:
    """`CheckpointDirectory.newest`, with a progress bar."""
    with bar(0, f"check {directory.path}") as shown:
        return directory.newest(lambda _, n: shown.update(n))


def agree(directory: CheckpointDirectory, ranks: Collectives, *, read_once: bool) -> Chosen:
    """The newest whole checkpoint of a directory that all machines see. Every rank calls it.

    Args:
      directory: The directory.
      ranks: The job's.
      read_once: Files with rows need not be read, if there is another checkpoint to go back to.

    Raises:
      StateError: On all ranks: one does not see it.
      UnsupportedError: On all ranks: it is of a later version of the format.
    """
    found: Checked | None = None
    is_read, passed_over = True, list[Path]()
    error: Exception | None = None
    if ranks.rank == WRITER:
        try:
            if read_once:
                with bar(0, f"check {directory.path}") as shown:
                    found, passed_over, is_read = directory.newest_to_read_once(lambda _, n: shown.update(n))
            else:
                found, passed_over = newest(directory)
            if found is None and (trained := _trained(directory)):
                raise StateError(
                    f"{directory.path} has checkpoints, {', '.join(trained[:5])}, and none of them is whole. To begin "
                    "anew, use another directory, and another TFSPS_JOB if the job has a name"
                )
        except Exception as caught:
            error = caught
    chosen = None if found is None else (found.path.name, found.data)
    own = (error_text(error), chosen, is_read)
    text, chosen, is_read = ranks.broadcast_object(own, WRITER, "tsps.checkpoint.newest")
    if text is not None:
        raise_failures([text], error, f"looking for checkpoints in {directory.path}")
    if chosen is None:
        return Chosen(None, True, passed_over)
    name, data = chosen
    path = directory.path / name
    with raising_on_all(ranks, f"restoring {path}", "tsps.checkpoint.seen"):
        seen = _see(path, data)
    return Chosen(seen, bool(is_read), passed_over)


def _see(path: Path, data: bytes) -> Checked:
    with contextlib.suppress(DamagedFileError, NotFoundError):
        found = directory_lib.look(path)
        if found.data == data:
            return found
    raise StateError(
        f"rank {WRITER} restores {path.name}, and {path} is another one here, or is not there: all machines must see "
        "one directory, or have one each (per_node=True)"
    )


def agree_per_node(directory: CheckpointDirectory, ranks: Collectives, *, read_once: bool) -> Chosen:
    """The newest checkpoint that is whole on all nodes, each of which has a directory. Every rank calls it.

    Arguments as of `agree`; `Chosen.checkpoint` is this node's.

    Raises:
      StateError: On all ranks: nodes have checkpoints, of more than the beginning of training, and none is whole on
        all.
      UnsupportedError: On all ranks: one is of a later version of the format.
    """
    own: dict[str, Path] = {}
    found: Checked | None = None
    is_leader = job.current().is_leader
    damage: dict[Path, str] = {}  # checkpoints of this node that are passed over, and why

    def find_own() -> tuple[list[str], list[str]]:
        trained = _trained(directory)
        for one in directory.find():
            with _noting_damage(one.path, damage):
                own.setdefault(directory_lib.look(one.path).manifest.id, one.path)
        return list(own), trained

    def is_whole(path: Path, *, rows: bool) -> bool:
        nonlocal found
        found = None
        with _noting_damage(path, damage):
            found = _check(path, rows=rows) if is_leader else directory_lib.look(path)
        return found is not None

    call = f"looking for checkpoints in {directory.path}"
    everyone = all_or_none(ranks, find_own, call, "tsps.checkpoint.newest")
    common = [one for one in everyone[WRITER][0] if all(one in ids for ids, _ in everyone)]
    is_read, chosen = True, None
    for number, id_ in enumerate(common):
        is_read = not read_once or number == len(common) - 1
        check = functools.partial(is_whole, own[id_], rows=is_read)
        if all(all_or_none(ranks, check, f"looking at {own[id_]}", "tsps.checkpoint.is_whole")):
            chosen = id_
            break
    for id_, path in own.items():
        if id_ == chosen:
            break
        damage.setdefault(path, "it is damaged on another node" if id_ in common else "another node does not have it")
    if is_leader:
        for path, why in damage.items():
            warnings.warn(f"checkpoint {path} is passed over: {why}", stacklevel=4)
    if chosen is None:
        said = {path.name: why for path, why in damage.items()}
        of_nodes = ranks.allgather_object(said, "tsps.checkpoint.none")
        if any(trained for _, trained in everyone):
            shown = {f"node {node}": of_nodes[leader] for node, leader in enumerate(job.current().leaders)}
            raise StateError(
                f"no checkpoint in {directory.path} is whole on all nodes: {shown}. Give the job the machines, or the "
                "directories, that it had; or remove these, to begin anew"
            )
        found = None
    return Chosen(found, is_read, list(damage) if is_leader else [])


@contextlib.contextmanager
def _noting_damage(path: Path, damage: dict[Path, str]) -> Iterator[None]:
    """Surrounds reading a checkpoint: if it is damaged, notes why, in place of raising."""
    try:
        yield
    except Exception as error:
        if not directory_lib.is_damage(error):
            raise
        damage[path] = str(error)


def _trained(directory: CheckpointDirectory) -> list[str]:
    """The names of checkpoints, whole or not, with which more than the beginning of training is lost."""
    return [one.path.name for one in directory.find() if one.step > 0]


def _check(path: Path, *, rows: bool) -> Checked:
    with bar(0, f"check {path}") as shown:
        return directory_lib.check(path, lambda _, n: shown.update(n), rows=rows)
