"""Opens a directory of checkpoints by its path or URL. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.store_directory import StoreDirectory
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError
from tf_sparse_ps.urls import is_url

_URL_AS_PATH = re.compile(r"[a-z][a-z0-9+.-]+:/")


def open_directory(
    directory: str | os.PathLike[str], staging: str | os.PathLike[str] | None = None, *, per_node: bool = False
) -> CheckpointDirectory:
    """Opens a directory. Reads nothing of a path, and lists a URL.

    Args:
      directory: A path, or a URL of fsspec.
      staging: The folder of this machine for files that are uploaded or restored. None: that for temporary files.
      per_node: Each machine has a directory of its own.

    Raises:
      InvalidArgumentError: `per_node` was given with a URL, or `staging` with a path or as a URL; or a URL was made a
        `Path`.
      UnsupportedError: The URL cannot be opened.
      OSError: The URL cannot be listed.
    """
    if isinstance(directory, Path) and _URL_AS_PATH.match(str(directory)):
        raise InvalidArgumentError(
            f"pathlib has made a path of a URL. Give the URL as a str. Received: directory={directory!r}"
        )
    if not is_url(directory):
        if staging is not None:
            raise InvalidArgumentError(
                "`staging` is for directories that are URLs: files of a path are written there at once. Leave it out. "
                f"Received: directory={os.fspath(directory)!r}, staging={os.fspath(staging)!r}"
            )
        return CheckpointDirectory(directory)
    if per_node:
        raise InvalidArgumentError(
            f"per_node=True is for directories of each machine, and all machines see {os.fspath(directory)}. Leave "
            "per_node out: each machine then uploads its part of every checkpoint"
        )
    if staging is not None and is_url(staging):
        raise InvalidArgumentError(f"`staging` must be a folder of this machine. Received: staging={staging!r}")
    return StoreDirectory(os.fspath(directory), staging)


@contextlib.contextmanager
def opened(directory: str | os.PathLike[str]) -> Iterator[CheckpointDirectory]:
    """Opens a directory for one command. Copies of checkpoints are in a temporary folder, which is removed."""
    if not is_url(directory):
        yield CheckpointDirectory(directory)
        return
    with tempfile.TemporaryDirectory(prefix="tf_sparse_ps-") as folder:
        store = StoreDirectory(os.fspath(directory), folder)
        try:
            yield store
        finally:
            store.done_reading()


@contextlib.contextmanager
def opened_with(path: str | os.PathLike[str]) -> Iterator[tuple[CheckpointDirectory, str | None]]:
    """Opens a directory, or that of a single checkpoint, for one command.

    Yields:
      The directory; and the name of the checkpoint, or None if `path` is a directory.
    """
    text = os.fspath(path).rstrip("/") if is_url(path) else os.path.realpath(path)
    folder, _, name = text.rpartition("/")
    is_single = CheckpointDirectory.names(Path(name)) and not folder.endswith("/")
    with opened(folder if is_single else path) as directory:
        yield directory, name if is_single else None


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[StoredCheckpoint]:
    """Reads all files of a checkpoint, or of the newest whole one in a directory. A remote one is copied meanwhile.

    Args:
      path: The folder of the checkpoint, or the directory; a path or a URL.

    Raises:
      NotFoundError: The directory has no whole checkpoint.
      DamagedFileError: The checkpoint is damaged.
    """
    with opened_with(path) as (directory, name):
        checkpoint = directory.checked(name) if name is not None else directory.newest_here()[0]
        if checkpoint is None:
            raise NotFoundError(f"{directory.name} has no checkpoint that is whole")
        yield checkpoint
