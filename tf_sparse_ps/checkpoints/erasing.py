"""Removes rows from the checkpoints of a directory. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from tf_sparse_ps.checkpoints import compaction
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError, StateError
from tf_sparse_ps.keys import fingerprint
from tf_sparse_ps.table.arrays import Keys

_LOW, _HIGH = -(2**63), 2**63 - 1


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


def erase(path: Path, keys: Keys, table: str | None = None) -> Erased:
    """Writes the newest whole checkpoint again without the rows of some keys, and removes all other checkpoints.

    So no file of the directory has these rows afterwards. If this is killed, run it again: the checkpoints that are
    left are whole, and may have the rows.

    Args:
      path: The directory.
      keys: int64[n]. Keys without a row are allowed.
      table: The name of the table. None: the only one of the checkpoint.

    Raises:
      NotFoundError: There is no whole checkpoint, or it has no such table.
      InvalidArgumentError: The checkpoint has several tables, and `table` is None.
      StateError: Another user's checkpoint could not be removed.
      WriterLockedError: Another process is saving to the directory.
      OSError: From the file system.
    """
    directory = CheckpointDirectory(path)
    checkpoint, _ = directory.newest()
    if checkpoint is None:
        raise NotFoundError(f"{path} has no checkpoint that is whole")
    names = [str(stored["name"]) for stored in checkpoint.manifest.tables]
    if table is None and len(names) != 1:
        raise InvalidArgumentError(f"{checkpoint.path} has the tables {names}. Name one of them")
    numbers = [number for number, name in enumerate(names) if table in (None, name)]
    if len(numbers) != 1:
        raise NotFoundError(f"{checkpoint.path} has {len(numbers)} tables {table!r}. Its tables are {names}")
    step = next(folder.step for folder in directory.find() if folder.path == checkpoint.path)
    with directory.saving(step, "tf-sparse-ps checkpoint erase") as save:
        erased = compaction.write(checkpoint, save, {numbers[0]: np.unique(keys)})
        others = [folder.path for folder in directory.find() if folder.path != save.path]
        for other in others:  # the newest first: an increment goes before what it builds on
            directory.remove(other)
        left = sorted(other.name for other in others if other.exists())
    if left:
        raise StateError(f"{save.path} lacks the rows now, but these checkpoints could not be removed: {left}")
    return Erased(save.path, erased, tuple(sorted(other.name for other in others)))


def read_keys(file: Path, *, strings: bool = False) -> Keys:
    """Reads keys from a file.

    Args:
      file: A NumPy file (.npy), or a text file with one id per line.
      strings: Whether the ids are strings, whose fingerprints are the keys; else they are integers.

    Returns:
      int64[n].

    Raises:
      InvalidArgumentError: An entry of the file is not such an id.
      OSError: From the file system.
    """
    if file.suffix == ".npy":
        return _of_array(file, strings)
    lines = file.read_bytes().splitlines()
    if strings:
        return fingerprint(np.array(lines, object))
    keys = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            keys.append(int(text))
        except ValueError:
            raise InvalidArgumentError(f"{file}, line {number}: {text!r} is no integer") from None
        if not _LOW <= keys[-1] <= _HIGH:
            raise InvalidArgumentError(f"{file}, line {number}: {keys[-1]} is no int64")
    return np.array(keys, np.int64)


def _of_array(file: Path, strings: bool) -> Keys:
    try:
        array = np.load(file, allow_pickle=False)
    except ValueError as error:
        raise InvalidArgumentError(f"{file} cannot be read: {error}") from None
    kinds = "SU" if strings else "iu"
    if array.dtype.kind not in kinds or (array.dtype == np.uint64 and array.size and array.max() > _HIGH):
        wanted = "strings" if strings else "integers of int64"
        raise InvalidArgumentError(f"{file} must be an array of {wanted}. Received: {array.dtype.name}{[*array.shape]}")
    return fingerprint(array).ravel() if strings else array.astype(np.int64).ravel()
