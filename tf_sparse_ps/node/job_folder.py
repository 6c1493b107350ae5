"""The folder that holds the groups of a user's jobs: `TFSPS_DIR`, by default in shared memory.

It is the user's own, mode 0700, and no symbolic link, so that nobody else can put or read tables there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import sys
from collections.abc import Collection, Iterator

from tf_sparse_ps import _table
from tf_sparse_ps.errors import AccessError, NoSpaceError, TableError

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
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        facts = os.lstat(path)
    except OSError as error:
        raise (NoSpaceError if error.errno == 28 else AccessError)(
            f"cannot make {path} ({source}) for tables: {error.strerror}. Set TFSPS_DIR to a folder of yours, on tmpfs "
            "for speed"
        ) from error
    if stat.S_ISLNK(facts.st_mode):
        raise AccessError(f"{path} ({source}) is a symbolic link to {os.readlink(path)}; tables follow none")
    if not stat.S_ISDIR(facts.st_mode):
        raise AccessError(f"{path} ({source}) is no directory")
    if facts.st_uid != os.geteuid():
        raise AccessError(f"{path} ({source}) belongs to user {facts.st_uid}, this process is user {os.geteuid()}")
    if facts.st_mode & 0o077:
        if os.environ.get("TFSPS_DIR") is None:
            os.chmod(path, 0o700)
        elif facts.st_mode & 0o022:
            mode = f"{facts.st_mode & 0o777:o}"
            raise AccessError(f"{path} ({source}) can be written by others (mode {mode}); chmod go-w")
    if not os.access(path, os.W_OK | os.X_OK):
        raise AccessError(f"{path} ({source}) cannot be written (mode {facts.st_mode & 0o777:o})")
    return path


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keeps other jobs from making or removing groups in the folder."""
    descriptor = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
    for entry in os.scandir(folder):
        if not is_unnamed(entry.name) or entry.path == keep or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            alive = _table.has_writer(entry.path)
        except TableError:  # what cannot be looked at stays
            continue
        if not alive:
            size = mebibytes(entry.path)
            remove_group(entry.path)
            say(f"removed {entry.path} ({size}), tables of a job that was killed, or ran out of room")
            removed.append(entry.path)
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
        for entry in os.scandir(folder):
            if not is_unnamed(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(TableError):  # what cannot be looked at stays
                info = _table.Group.open(entry.path).info()
                ended_itself = not any(name.startswith(EXCHANGE) for name in os.listdir(entry.path))
                if info["writer_pid"] in pids and not info["writer_alive"] and not ended_itself:
                    remove_group(entry.path)


def is_unnamed(name: str) -> bool:
    """Whether a group of this name is an unnamed job's."""
    return _UNNAMED.fullmatch(name) is not None


def remove_group(path: str) -> None:
    """Removes a group's directory, and what its tables have on disks."""
    with contextlib.suppress(TableError):
        _table.remove_rows_on_disk(path)
    shutil.rmtree(path, ignore_errors=True)


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
