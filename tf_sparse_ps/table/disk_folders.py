"""Where the rows of tiered tables are on a disk: `<path>/<group's folder>/<table>`, of `tsps.Tiered(path)`.

A folder says whose it is, in a file `table`. Rows on disk are of no use without the table in memory: a folder whose
table is gone, as after a restart of the machine, is removed if it was an unnamed job's, else it stays and is refused.
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

_BEGINS_WITHIN_S = 60.0  # from a group's folder to its first table
_OWNER_BYTES = 4096  # of the file `table`, at most


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


@contextlib.contextmanager
def prepared(storage: Storage, table_path: str) -> Iterator[tuple[str, int]]:
    """Makes the folder that the table's own will be in, and removes it again if the table is not made.

    Yields:
      What `of` returns; the table is made meanwhile.

    Raises:
      AccessError, NoSpaceError: It cannot be made.
    """
    folder, memory = of(storage, table_path)
    if not isinstance(storage, Tiered):
        yield folder, memory
        return
    of_group = os.path.dirname(folder)
    is_new = not os.path.lexists(of_group)
    try:
        with Folder.open(storage.path, Trust.OWN, make=True) as disk:
            _remove_leftovers(disk)
            disk.own(os.path.basename(of_group), make=True).close()
    except AccessError as error:
        raise AccessError(f"cannot make {of_group} for rows on disk: {error}") from None
    except OSError as error:
        raise (NoSpaceError if error.errno == errno.ENOSPC else AccessError)(
            f"cannot make {of_group} for rows on disk: {error.strerror}"
        ) from error
    try:
        yield folder, memory
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError), Folder.open(storage.path, Trust.OWN) as disk:
                disk.remove_empty(os.path.basename(of_group))
        raise


def _remove_leftovers(disk: Folder) -> None:
    """Removes what unnamed jobs have left whose memory is gone."""
    for name in disk.names():
        if not job_folder.is_unnamed(name) or not disk.is_folder(name):
            continue
        with contextlib.suppress(OSError):  # it belongs to another user, or another job is removing it
            # An empty one may be a job's, or another node's, that is about to make its first table in it.
            is_over = time.time() - disk.status(name).st_mtime > _BEGINS_WITHIN_S
            with disk.own(name) as group:
                for table in filter(group.is_folder, group.names()):
                    if _is_leftover(group, table):
                        group.remove(table)
                        job_folder.say(f"removed {group.path}/{table}, rows of a table that is gone")
                        is_over = True
            if is_over:
                disk.remove_empty(name)  # if nobody uses it


def _is_leftover(group: Folder, table: str) -> bool:
    with group.own(table) as folder:
        return not os.path.exists(_table_of(folder)) and not _is_used(folder)


def _is_used(folder: Folder) -> bool:
    """Whether a process has the rows open: also one of a container, whose table this one cannot see."""
    for name in filter(folder.is_folder, folder.names()):
        try:
            generation = folder.own(name)
        except OSError:
            continue  # another job has removed it
        with generation:
            try:
                fcntl.flock(generation.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
    return False


def _table_of(folder: Folder) -> str:
    """Returns the folder of the table in memory; "/", which exists, if that is not known."""
    try:
        with os.fdopen(folder.open_file("table", os.O_RDONLY)) as file:
            return file.read(_OWNER_BYTES)[33:].rstrip("\n") or "/"
    except (OSError, UnicodeDecodeError):
        return "/"
