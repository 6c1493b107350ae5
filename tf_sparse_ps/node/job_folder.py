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

EXCHANGE = ".exchange-"  # begins the name of the folder in a group that belongs to one run of the job
_MADE_FIRST = {"undo", "writer.lock", "group"}  # the files of a group without tables, in the order of their creation
_UNNAMED = re.compile(r"[0-9a-f]{32}-n\d+")


def default() -> str:
    """Returns the path of the folder: `TFSPS_DIR`, or `/dev/shm/tf_sparse_ps-<uid>`."""
    return os.environ.get("TFSPS_DIR") or f"/dev/shm/tf_sparse_ps-{os.getuid()}"


def prepare() -> str:
    """Makes the folder if it is missing, checks that it belongs to this user, and returns its absolute path.

    Raises:
      AccessError: The folder belongs to another user, is a symbolic link or no directory, or cannot be written.
      NoSpaceError: The file system has no space left.
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
                raise AccessError(
                    f"{path} cannot be written by this process (mode {mode:04o}). Set TFSPS_DIR to a folder that you "
                    "can write"
                )
    except AccessError as error:
        raise AccessError(f"cannot make {path} ({source}) for tables: {error}") from None
    except OSError as error:
        raise (NoSpaceError if error.errno == errno.ENOSPC else AccessError)(
            f"cannot make {path} ({source}) for tables: {error.strerror}. Set TFSPS_DIR to a folder that you can "
            "write, on tmpfs for speed"
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
        # Closing the descriptor is not enough, because a forked child may have a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def remove_leftovers(folder: str, *, keep: str) -> list[str]:
    """Removes the groups of unnamed jobs whose leader is dead, logs them, and returns their paths.

    The caller has locked the folder. A leader holds this lock while it makes its group, so a group that is not complete
    was left by a leader that was killed.

    Args:
      folder: The folder that contains the groups.
      keep: The path of a group that stays.
    """
    removed = []
    for path in leftovers(folder):
        if path == keep:
            continue
        size = mebibytes(path)
        remove_group(path)
        say(f"removed {path} ({size}), the tables of a job that was killed or ran out of room")
        removed.append(path)
    return removed


def leftovers(folder: str) -> list[str]:
    """Returns the paths of the groups of unnamed jobs whose leader is dead.

    The caller has locked the folder, or checks again before it removes one (see `remove_leftovers`).

    Args:
      folder: The folder that contains the groups.
    """
    paths = []
    for path in _groups_of_unnamed_jobs(folder):
        with contextlib.suppress(TableError):  # a group that cannot be read stays
            if not _table.has_writer(path):
                paths.append(path)
    return paths


def remove_groups_of(pids: Collection[int]) -> None:
    """Removes the groups of unnamed jobs whose leader was one of these processes and died before it could do so itself.

    A group that its leader kept because the job ran out of room stays. Such a group has no exchange folder any more
    (`job/job_end.py`).

    Args:
      pids: The ids of processes of this machine that have ended.
    """
    folder = os.path.abspath(default())
    if not os.path.isdir(folder):
        return
    with locked(folder):
        for path in _groups_of_unnamed_jobs(folder):
            with contextlib.suppress(TableError):  # a group that cannot be read stays
                info = _table.Group.open(path).info()
                ended_itself = not any(name.startswith(EXCHANGE) for name in os.listdir(path))
                if info["writer_pid"] in pids and not info["writer_alive"] and not ended_itself:
                    remove_group(path)


def is_unnamed(name: str) -> bool:
    """Whether a group of this name belongs to an unnamed job."""
    return _UNNAMED.fullmatch(name) is not None


def remove_group(path: str) -> None:
    """Removes a group's directory, and the rows of its tables on disks."""
    with contextlib.suppress(TableError):
        _table.remove_rows_on_disk(path)
    remove_folder(path)


def remove_unmade(path: str) -> None:
    """Removes the directory of a group if its leader was killed while it made the group, before it made a table.

    The caller has locked the folder that contains the groups, as a leader does while it makes its group.
    """
    with Folder.open(os.path.dirname(path), Trust.OWN) as parent:
        if not parent.is_folder(os.path.basename(path)):
            return
        with parent.own(os.path.basename(path)) as group:
            if not _MADE_FIRST.issuperset(names := group.names()):
                return
            if "group" in names:
                with os.fdopen(group.open_file("group", os.O_RDONLY | os.O_CLOEXEC), "rb") as control:
                    if control.read(8).strip(b"\0"):  # the header is written last
                        return
    remove_folder(path)


def remove_folder(path: str) -> None:
    """Removes a folder of this user, in one that only this user can write. Entries that cannot be removed stay."""
    with contextlib.suppress(OSError):
        folders.remove_folder(path, Trust.OWN)


def _groups_of_unnamed_jobs(folder: str) -> list[str]:
    """Returns the paths of the groups of unnamed jobs, running or not."""
    with Folder.open(folder, Trust.OWN) as open_folder:
        names = [name for name in open_folder.names() if is_unnamed(name) and open_folder.is_folder(name)]
    return [os.path.join(folder, name) for name in names]


def say(text: str) -> None:
    """Writes one line to standard error."""
    print(f"tf_sparse_ps: {text}", file=sys.stderr, flush=True)


def mebibytes(folder: str) -> str:
    """Returns the size of the files of a folder as text."""
    return f"{bytes_of(folder) / 2**20:,.0f} MiB"


def bytes_of(folder: str) -> int:
    """Returns the size of the files of a folder, in bytes."""
    return sum(_bytes(folder))


def _bytes(folder: str) -> Iterator[int]:
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
