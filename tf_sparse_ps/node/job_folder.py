"""The folder that holds the groups of a user's jobs: `TFSPS_DIR`, by default in shared memory.

The folder belongs to the user, has mode 0700 unless the user made it, and is not a symbolic link. Nobody else can put
tables there or replace the folder (`tf_sparse_ps.folders`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator

from tf_sparse_ps import _table, folders
from tf_sparse_ps.errors import AccessError, NoSpaceError, TableError
from tf_sparse_ps.folders import Folder, Trust, open_regular

EXCHANGE = ".exchange-"  # begins the name of the folder in a group that only the run has which it is of
_UNNAMED = re.compile(r"[0-9a-f]{32}-n\d+")


def default() -> str:
    """Where tables lie: `TFSPS_DIR`, or `/dev/shm/tf_sparse_ps-<uid>`."""
    return os.environ.get("TFSPS_DIR") or f"/dev/shm/tf_sparse_ps-{os.getuid()}"


def prepare() -> str:
    """Makes the folder if need be and checks that it is ours; returns its absolute path.

    Raises:
      AccessError: It is another user's, a symbolic link, no directory, or cannot be written.
      NoSpaceError: There is no room.
    """
    path = os.path.abspath(default())
    source = "TFSPS_DIR" if os.environ.get("TFSPS_DIR") else "the default folder"
    try:
        with (
            Folder.open(os.path.dirname(path), Trust.OWN, make=True) as parent,
            parent.own(os.path.basename(path), make=True) as folder,
        ):
            if os.environ.get("TFSPS_DIR") is None:
                folder.make_private()
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.descriptor):
                mode = stat.S_IMODE(os.fstat(folder.descriptor).st_mode)
                raise AccessError(f"{path} cannot be written by this process (mode {mode:04o})")
    except AccessError as error:
        raise AccessError(f"cannot make {path} ({source}) for tables: {error}") from None
    except OSError as error:
        raise (NoSpaceError if error.errno == errno.ENOSPC else AccessError)(
            f"cannot make {path} ({source}) for tables: {error.strerror}. Set TFSPS_DIR to a folder of yours, on tmpfs "
            "for speed"
        ) from error
    return path


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keeps other jobs from making or removing groups in the folder."""
    descriptor = open_regular(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(folder: str, *, keep: str) -> list[str]:
    """Removes the groups of unnamed jobs whose leader is dead, and says so; call with the folder locked.

    Returns their paths. A leader that was killed while making its group is dead, too: who makes one holds the lock.
    """
    removed = []
    for path in _groups_of_unnamed_jobs(folder):
        if path == keep:
            continue
        try:
            alive = _table.has_writer(path)
        except TableError:  # what cannot be looked at stays
            continue
        if not alive:
            size = mebibytes(path)
            remove_group(path)
            say(f"removed {path} ({size}), tables of a job that was killed, or ran out of room")
            removed.append(path)
    return removed


def remove_groups_of(pids: Collection[int]) -> None:
    """Removes the groups of unnamed jobs whose leader was one of these processes and died before it could do so itself.

    Not those that a leader has kept for lack of room: of these, what the run alone had is gone (`job/job_end.py`).

    Args:
      pids: Processes of this machine that have ended.
    """
    folder = os.path.abspath(default())
    if not os.path.isdir(folder):
        return
    with locked(folder):
        for path in _groups_of_unnamed_jobs(folder):
            with contextlib.suppress(TableError):  # what cannot be looked at stays
                info = _table.Group.open(path).info()
                ended_itself = not any(name.startswith(EXCHANGE) for name in os.listdir(path))
                if info["writer_pid"] in pids and not info["writer_alive"] and not ended_itself:
                    remove_group(path)


def is_unnamed(name: str) -> bool:
    """Whether a group of this name is an unnamed job's."""
    return _UNNAMED.fullmatch(name) is not None


def remove_group(path: str) -> None:
    """Removes a group's directory, and what its tables have on disks."""
    with contextlib.suppress(TableError):
        _table.remove_rows_on_disk(path)
    remove_folder(path)


def remove_folder(path: str) -> None:
    """Removes a folder of this user, in one that only this user can write. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        folders.remove_folder(path, Trust.OWN)


def _groups_of_unnamed_jobs(folder: str) -> list[str]:
    """Returns the paths of the groups of unnamed jobs, whether these run or not."""
    with Folder.open(folder, Trust.OWN) as open_folder:
        names = [name for name in open_folder.names() if is_unnamed(name) and open_folder.is_folder(name)]
    return [os.path.join(folder, name) for name in names]


def say(text: str) -> None:
    """One line to standard error."""
    print(f"tf_sparse_ps: {text}", file=sys.stderr, flush=True)


def mebibytes(folder: str) -> str:
    """How much room the files of a folder take."""
    return f"{sum(_bytes(folder)) / 2**20:,.0f} MiB"


def _bytes(folder: str) -> Iterator[int]:
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
