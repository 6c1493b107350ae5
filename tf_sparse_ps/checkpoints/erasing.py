"""Removes rows from the checkpoints of a directory. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import numpy as np

from tf_sparse_ps.checkpoints import compaction
from tf_sparse_ps.checkpoints.directories import opened
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.keys import fingerprint
from tf_sparse_ps.table.arrays import Keys

_LOW, _HIGH = -(2**63), 2**63 - 1
_INTEGER = re.compile(r"-?[0-9]{1,19}")


@dataclasses.dataclass(frozen=True)
class Erased:
    """The result of `erase`.

    Attributes:
      checkpoint: The folder of the checkpoint that was written.
      rows: The number of rows that it lacks now.
      removed: The names of the checkpoints that were removed.
    """

    checkpoint: Path
    rows: int
    removed: tuple[str, ...]


def erase(path: str | os.PathLike[str], keys: Keys, table: str | None = None) -> Erased:
    """Writes the newest whole checkpoint again without the rows of some keys, and removes all other checkpoints.

    So no checkpoint of the directory has these rows afterwards. If this is killed, run it again: the checkpoints that
    are left are whole, and may have the rows.

    Args:
      path: The directory, or its URL.
      keys: int64[n]. Keys without a row are allowed.
      table: The name of the table, or its place among the tables, from "0" on. None: the only table.

    Raises:
      NotFoundError: There is no whole checkpoint, or it has no such table.
      InvalidArgumentError: There are no keys; or `table` is None or a name, and the checkpoint has several such tables.
      UnsupportedError: Each machine has a directory of its own (`per_node=True`).
      StateError: A checkpoint was saved meanwhile, and nothing was changed; or checkpoints could not be removed.
      WriterLockedError: Another process is saving to the directory.
      OSError: From the file system.
    """
    if len(keys) == 0:
        raise InvalidArgumentError("there are no ids to erase")
    with opened(path) as directory:
        return _erase(directory, keys, table)


def _erase(directory: CheckpointDirectory, keys: Keys, table: str | None) -> Erased:
    rewriting = compaction.Rewriting.of(
        directory,
        table,
        ", and other machines may not have the newest. Call layer.erase(ids) in the job, and save until none is older",
    )
    with rewriting.saving("tf-sparse-ps checkpoint erase") as save:
        rows = compaction.write(rewriting.checkpoint, save, {rewriting.number: keys})
        for folder in rewriting.folders:  # the newest first: an increment goes before what it builds on
            directory.remove(folder.path)
        left = directory.others(save.path)
    if left:
        raise StateError(f"{save.shown} lacks the rows now, but these folders could not be removed: {left}")
    return Erased(save.path, rows, tuple(sorted(folder.path.name for folder in rewriting.folders)))


def read_keys(file: Path, *, strings: bool = False) -> Keys:
    """Reads keys from a file.

    Args:
      file: A NumPy array (.npy), or a text file in UTF-8 with one id per line. Empty lines are ignored.
      strings: Whether the ids are strings, whose fingerprints are the keys; else they are integers. Spaces belong to
        strings.

    Returns:
      int64[n].

    Raises:
      InvalidArgumentError: An entry of the file is not such an id.
      OSError: From the file system.
    """
    if file.suffix.lower() == ".npy":
        return _of_array(file, strings)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{file} is no text in UTF-8: {error}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if strings:
        return fingerprint([line for line in lines if line])
    keys = []
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        if not entry:
            continue
        if not _INTEGER.fullmatch(entry) or not _LOW <= int(entry) <= _HIGH:
            raise InvalidArgumentError(f"{file}, line {number}: must be an integer of int64. Received: {entry[:60]!r}")
        keys.append(int(entry))
    return np.array(keys, np.int64)


def _of_array(file: Path, strings: bool) -> Keys:
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidArgumentError(f"{file} cannot be read: {error}") from None
    if not isinstance(array, np.ndarray):
        raise InvalidArgumentError(f"{file} is no array, but an archive")
    kinds = "SU" if strings else "iu"
    if array.dtype.kind not in kinds or (array.dtype == np.uint64 and array.size and array.max() > _HIGH):
        wanted = "strings" if strings else "integers of int64"
        raise InvalidArgumentError(f"{file} must be an array of {wanted}. Received: {array.dtype.name}{[*array.shape]}")
    return fingerprint(array).ravel() if strings else array.astype(np.int64).ravel()
