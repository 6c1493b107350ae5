"""The folders of rows on disk: a table with `tsps.Tiered(path)` has `<path>/<group's folder>/<table>`.

The file `table` in such a folder names the table. Rows on disk are of no use without the table in memory, which is lost
when the machine restarts. A folder without its table is removed if it belonged to an unnamed job. Otherwise it stays,
and a new table of that name is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Any

from tf_sparse_ps.config.tiered import Storage, Tiered
from tf_sparse_ps.errors import AccessError, NoSpaceError
from tf_sparse_ps.folders import Folder, Trust
from tf_sparse_ps.node import job_folder

_BEGINS_WITHIN_S = 60.0  # the time in which a job makes the first table in a group's folder
_OWNER_BYTES = 4096  # the largest size of the file `table`


def of(storage: Storage, table_path: str) -> tuple[str, int]:
    """Returns the folder on disk and the bytes of memory of a table, in the core's form.

    Args:
      storage: The storage of the table.
      table_path: The path of the table, `<group directory>/<table>`.

    Returns:
      The folder and the number of bytes; "" and 0 if the table is in memory only.
    """
    if not isinstance(storage, Tiered):
        return "", 0
    group, table = os.path.split(table_path)
    return os.path.join(storage.path, os.path.basename(group), table), int(storage.memory)


def storage_of(info: dict[str, Any]) -> Storage:
    """Returns the storage of a table, given the core's description of the table."""
    folder = info["storage_folder"]
    if not folder:
        return "memory"
    return Tiered(os.path.dirname(os.path.dirname(folder)), info["storage_memory"])


@contextlib.contextmanager
def prepared(storage: Storage, table_path: str) -> Iterator[tuple[str, int]]:
    """Makes the group's folder on disk, in which the table's folder will be, around the creation of the table.

    The group's folder is removed again if it is new and the table is not made.

    Yields:
      The result of `of`.

    Raises:
      AccessError, NoSpaceError: The folder cannot be made.
    """
    folder, memory = of(storage, table_path)
    if not isinstance(storage, Tiered):
        yield folder, memory
        return
    group_folder = os.path.dirname(folder)
    is_new = not os.path.lexists(group_folder)
    try:
        with Folder.open(storage.path, Trust.OWN, make=True) as disk:
            _remove_leftovers(disk)
            disk.own(os.path.basename(group_folder), make=True).close()
    except AccessError as error:
        raise AccessError(f"cannot make {group_folder} for rows on disk: {error}") from None
    except OSError as error:
        raise (NoSpaceError if error.errno == errno.ENOSPC else AccessError)(
            f"cannot make {group_folder} for rows on disk: {error.strerror}. Give tsps.Tiered the path of a folder "
            "that you can write, with enough free space"
        ) from error
    try:
        yield folder, memory
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError), Folder.open(storage.path, Trust.OWN) as disk:
                disk.remove_empty(os.path.basename(group_folder))
        raise


def _remove_leftovers(disk: Folder) -> None:
    """Removes the rows on disk of unnamed jobs whose tables in memory do not exist any more."""
    for name in disk.names():
        if not job_folder.is_unnamed(name) or not disk.is_folder(name):
            continue
        with contextlib.suppress(OSError):  # the folder belongs to another user, or another job is removing it
            # A job, or another node, may be about to make its first table in an empty folder.
            is_over = time.time() - disk.status(name).st_mtime > _BEGINS_WITHIN_S
            with disk.own(name) as group:
                for table in filter(group.is_folder, group.names()):
                    if _is_leftover(group, table):
                        group.remove(table)
                        job_folder.say(f"removed {group.path}/{table}, the rows of a table that no longer exists")
                        is_over = True
            if is_over:
                disk.remove_empty(name)  # fails if a table of the group is in use


def _is_leftover(group: Folder, table: str) -> bool:
    with group.own(table) as folder:
        return not os.path.exists(_table_of(folder)) and not _is_used(folder)


def _is_used(folder: Folder) -> bool:
    """Whether a process has the rows open. It may run in a container, so that this process cannot see its table."""
    for name in filter(folder.is_folder, folder.names()):
        try:
            generation = folder.own(name)
        except OSError:
            continue  # another job has removed the folder
        with generation:
            try:
                fcntl.flock(generation.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
    return False


def _table_of(folder: Folder) -> str:
    """Returns the folder of the table in memory, or "/", which always exists, if the folder is not known."""
    try:
        with os.fdopen(folder.open_file("table", os.O_RDONLY)) as file:
            return file.read(_OWNER_BYTES)[33:].rstrip("\n") or "/"
    except (OSError, UnicodeDecodeError):
        return "/"
