"""Which checkpoint a job begins with: all of its ranks look, and agree on one.

Of one directory that all machines see rank 0 chooses the newest whole one. Where each node has its own, it is the
newest that all nodes have, told by its id.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps import job
from tf_sparse_ps.checkpoints import directory as directory_lib
from tf_sparse_ps.checkpoints.directory import Checked, CheckpointDirectory
from tf_sparse_ps.checkpoints.saver import WRITER
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import DamagedFileError, NotFoundError, StateError
from tf_sparse_ps.layers.sharded_content import raise_failed, text_of
from tf_sparse_ps.table.progress import bar


class Chosen(NamedTuple):
    """What to begin with."""

    checkpoint: Checked | None
    """None: there is none that is whole."""
    is_read: bool
    """All of its files have been read, and are whole; else those with rows have not."""
    passed_over: list[Path]
    """Newer ones, which are damaged or lack something, on who writes to the directory."""


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
        except Exception as caught:
            error = caught
    chosen = None if found is None else (found.path.name, found.data)
    text, chosen, is_read = ranks.broadcast_object((text_of(error), chosen, is_read), WRITER, "tsps.checkpoint.newest")
    if text is not None:
        raise_failed([text], error, f"looking for checkpoints in {directory.path}")
    if chosen is None:
        return Chosen(None, True, passed_over)
    name, data = chosen
    seen = _see(directory.path / name, data)
    texts = ranks.allgather_object(text_of(None if seen else _not_seen(directory.path / name)), "tsps.checkpoint.seen")
    if seen is None:
        raise _not_seen(directory.path / name)
    raise_failed(texts, None, f"restoring {directory.path / name}")
    return Chosen(seen, bool(is_read), passed_over)


def _see(path: Path, data: bytes) -> Checked | None:
    try:
        found = directory_lib.look(path)
    except (DamagedFileError, NotFoundError, OSError):
        return None
    return found if found.data == data else None


def _not_seen(path: Path) -> StateError:
    return StateError(
        f"rank {WRITER} restores {path.name}, and {path} is another one here, or is not there: all machines must see "
        "one directory, or have one each (per_node=True)"
    )


def agree_per_node(directory: CheckpointDirectory, ranks: Collectives, *, read_once: bool) -> Chosen:
    """The newest checkpoint that is whole on all nodes, each of which has a directory. Every rank calls it.

    Arguments as of `agree`; `Chosen.checkpoint` is this node's.

    Raises:
      StateError: On all ranks: nodes have checkpoints, of more than the beginning of training, and none is on all.
      UnsupportedError: On all ranks: one is of a later version of the format.
    """
    own: dict[str, Path] = {}
    steps: dict[str, int] = {}
    error: Exception | None = None
    leads = job.current().is_leader
    passed_over: list[Path] = []
    try:
        for one in directory.find():
            try:
                content = directory_lib.look(one.path).manifest
                own.setdefault(content.id, one.path)
                steps[content.id] = content.step
            except (DamagedFileError, NotFoundError, OSError) as caught:
                if leads:
                    warnings.warn(f"checkpoint {one.path} is passed over: {caught}", stacklevel=4)
                    passed_over.append(one.path)
    except Exception as caught:
        error = caught
    everyone = ranks.allgather_object((text_of(error), steps), "tsps.checkpoint.newest")
    raise_failed([text for text, _ in everyone], error, f"looking for checkpoints in {directory.path}")
    of_ranks = [theirs for _, theirs in everyone]
    common = [one for one in of_ranks[WRITER] if all(one in theirs for theirs in of_ranks)]
    if not common and any(step > 0 for theirs in of_ranks for step in theirs.values()):
        of_nodes = {
            f"node {node}": sorted(of_ranks[leader].values()) for node, leader in enumerate(job.current().leaders)
        }
        raise StateError(
            f"no checkpoint in {directory.path} is on all nodes: they have those of steps {of_nodes}. Give the job the "
            "machines, or the directories, that it had; or remove these, to begin anew"
        )
    for number, one in enumerate(common):
        is_read = not read_once or number == len(common) - 1
        checked, damage = _check(own[one], rows=is_read)
        if all(ranks.allgather_object(damage is None, "tsps.checkpoint.is_whole")):
            assert checked is not None
            return Chosen(checked, is_read, passed_over + _before(own, one, leads))
        if leads:
            warnings.warn(
                f"checkpoint {own[one]} is passed over: {damage or 'it is damaged on another node'}", stacklevel=3
            )
    return Chosen(None, True, passed_over + _before(own, None, leads))


def _check(path: Path, *, rows: bool) -> tuple[Checked | None, Exception | None]:
    try:
        with bar(0, f"check {path}") as shown:
            return directory_lib.check(path, lambda _, n: shown.update(n), rows=rows), None
    except (DamagedFileError, NotFoundError, OSError) as error:
        return None, error


def _before(own: dict[str, Path], chosen: str | None, leads: bool) -> list[Path]:
    """The checkpoints of this node that are newer than the chosen one."""
    if not leads:
        return []
    found: list[Path] = []
    for one, path in own.items():
        if one == chosen:
            break
        found.append(path)
    return found
