"""Where the rows of tiered tables are on a disk: `<path>/<group's folder>/<table>`, of `tsps.Tiered(path)`.

A folder says whose it is, in a file `table`. Rows on disk are of no use without the table in memory: a folder whose
table is gone, as after a restart of the machine, is removed if it was an unnamed job's, else it stays and is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from typing import Any

from tf_sparse_ps.config.tiered import Storage, Tiered
from tf_sparse_ps.errors import AccessError, NoSpaceError
from tf_sparse_ps.node import job_folder

_BEGINS_WITHIN_S = 60.0  # from a group's folder to its first table


def of(storage: Storage, table_path: str) -> tuple[str, int]:
    """Folder on disk and bytes of memory of a table, as the core takes them.

    Args:
      storage: The table's.
      table_path: `<group directory>/<table>`.
    """
    if not isinstance(storage, Tiered):
        return "", 0
    group, table = os.path.split(table_path)
    return os.path.join(storage.path, os.path.basename(group), table), int(storage.memory)


def storage_of(info: dict[str, Any]) -> Storage:
    """The inverse of `of`, from what the core says of a table."""
    folder = info["storage_folder"]
    if not folder:
        return "memory"
    return Tiered(os.path.dirname(os.path.dirname(folder)), info["storage_memory"])


def prepare(storage: Storage, table_path: str) -> tuple[str, int]:
    """Makes the folder that the table's own will be in; returns what `of` does.

    Raises:
      AccessError, NoSpaceError: It cannot be made.
    """
    folder, memory = of(storage, table_path)
    if isinstance(storage, Tiered):
        try:
            os.makedirs(storage.path, exist_ok=True)
            _remove_leftovers(str(storage.path))
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(folder), 0o700)
        except OSError as error:
            raise (NoSpaceError if error.errno == errno.ENOSPC else AccessError)(
                f"cannot make {os.path.dirname(folder)} for rows on disk: {error.strerror}"
            ) from error
        _check_owner(os.path.dirname(folder))
    return folder, memory


def _check_owner(folder: str) -> None:
    """Whoever owns a folder can put another one in the place of those in it."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise AccessError(f"{folder}, for rows on disk, is not a directory")
    if found.st_uid != os.geteuid():
        raise AccessError(f"{folder}, for rows on disk, belongs to user {found.st_uid}: name another path")


def _remove_leftovers(path: str) -> None:
    """Removes what unnamed jobs have left whose memory is gone."""
    for group in os.scandir(path):
        if not job_folder.is_unnamed(group.name) or not group.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(OSError):  # another user's, or another job is removing it
            # An empty one may be a job's, or another node's, that is about to make its first table in it.
            is_over = time.time() - group.stat(follow_symlinks=False).st_mtime > _BEGINS_WITHIN_S
            for table in os.scandir(group.path):
                if not os.path.exists(_table_of(table.path)) and not _is_used(table.path):
                    shutil.rmtree(table.path, ignore_errors=True)
                    job_folder.say(f"removed {table.path}, rows of a table that is gone")
                    is_over = True
            if is_over:
                os.rmdir(group.path)  # if nobody uses it


def _is_used(folder: str) -> bool:
    """Whether a process has the rows open: also one of a container, whose table this one cannot see."""
    for generation in os.scandir(folder):
        if not generation.is_dir(follow_symlinks=False):
            continue
        try:
            opened = os.open(generation.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # gone, or another user's
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(opened)
    return False


def _table_of(folder: str) -> str:
    """The folder of the table in memory; "/" if that is not known, which exists."""
    try:
        with open(os.path.join(folder, "table")) as file:
            return file.read()[33:].rstrip("\n") or "/"
    except OSError:
        return "/"
