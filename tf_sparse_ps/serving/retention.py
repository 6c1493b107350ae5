"""Removes old versions of a directory, but none that is pinned or that a process has open.

A process that opens a table of a version holds a lock (`F_OFD_SETLK`) of the table's file in `assets`. A version that
is removed loses its name first. Versions share files by hard links, so those that later versions use stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
from pathlib import Path

from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError
from tf_sparse_ps.folders import Trust, remove_folder
from tf_sparse_ps.serving import fault_points
from tf_sparse_ps.serving.version import ASSETS, complete, is_complete

PIN = "pinned-"  # the name of the file that pins a version, before the number
_REMOVING = ".removing-"
_FLOCK = "hhqqi4x"  # struct flock of Linux: type, whence, start, length, pid


def prune(directory: Path, keep: int) -> list[Path]:
    """Removes all but the newest versions of a directory.

    Args:
      directory: The directory of versions with numbers as names.
      keep: The number of versions to keep, at least 1. Pinned versions, and those that are in use, stay in any case.

    Returns:
      The versions that were removed.
    """
    for name in os.listdir(directory):
        if name.startswith(_REMOVING):  # a killed call has left it
            _remove(directory / name)
    versions = [folder for _, folder in complete(directory)]
    removed = []
    for folder in versions[keep:]:
        if is_pinned(folder) or is_in_use(folder):
            continue
        aside = _set_aside(folder)
        if is_in_use(aside):  # opened since
            os.rename(aside, folder)
            continue
        _remove(aside)
        fault_points.reach("removed")
        removed.append(folder)
    return removed


def remove(version: Path) -> None:
    """Removes a version. Processes that have it open keep its files until they close it."""
    _remove(_set_aside(version))


def _set_aside(version: Path) -> Path:
    aside = version.parent / f"{_REMOVING}{version.name}-{secrets.token_hex(4)}"
    os.rename(version, aside)
    fault_points.reach("set_aside")
    return aside


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the next call tries again
        remove_folder(folder, Trust.GROUP)


def is_in_use(version: Path) -> bool:
    """Whether a process of this machine has a table of a version open."""
    with contextlib.suppress(FileNotFoundError):
        return any(_is_locked(path) for path in (version / ASSETS).iterdir())
    return False


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted)
        return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)
    except OSError:  # the file system has no locks
        return False
    finally:
        os.close(descriptor)


def pin(version: Path) -> None:
    """Keeps a version until `unpin`.

    Raises:
      NotFoundError: The folder is not a version.
    """
    if not is_complete(version):
        raise NotFoundError(f"{version} is not a served version, so it cannot be pinned")
    (version.parent / f"{PIN}{version.name}").touch()


def unpin(version: Path) -> None:
    """Allows a version to be removed.

    Raises:
      InvalidArgumentError: The version is not pinned.
    """
    try:
        os.unlink(version.parent / f"{PIN}{version.name}")
    except FileNotFoundError:
        raise InvalidArgumentError(f"{version} is not pinned") from None


def is_pinned(version: Path) -> bool:
    """Whether a version is pinned."""
    return (version.parent / f"{PIN}{version.name}").exists()
