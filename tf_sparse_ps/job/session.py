"""`Session`: what the ranks of a node tell each other outside of steps, in files of one run of a job.

- `.session-<hex>`, the leader's: for each write outside of steps that it has finished two int64, the table's ordinal
  and a number that stands for what was written. Making a table is one.
- `.session-<hex>.<local rank>`, every other rank's: for each table a byte, 1 when this rank needs it no more. Tables
  are found there by their ordinals.

A rank holds a lock on its file while it lives: one that has ended needs no table. The time of the leader's file is that
of its last progress.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator

from tf_sparse_ps.errors import NoSpaceError
from tf_sparse_ps.folders import open_regular
from tf_sparse_ps.node import activity

_RECORD = struct.Struct("<qq")


class Session:
    """This rank's part of it. The leader `begin`s it, then the others `join`.

    Attributes:
      path: The leader's file.
    """

    def __init__(self, group_path: str, name: str, local_rank: int, local_size: int) -> None:
        """Makes no file yet.

        Args:
          group_path: Folder of the files.
          name: Tells this run of the job from others.
          local_rank, local_size: This rank, 0 the leader, and the ranks of its node.
        """
        self.path = os.path.join(group_path, f".session-{name}")
        self._local_rank, self._local_size = local_rank, local_size
        self._own = self._leaders = -1
        self._others: dict[int, int] = {}  # descriptors of other ranks' files, by local rank
        self._end = 0  # bytes of the leader's file that were written, or read, here
        self._read: dict[int, list[int]] = {}  # of each table, what was read and not yet waited for
        self._ended: set[int] = set()

    def begin(self) -> None:
        """The leader: makes its file.

        Raises:
          NoSpaceError: There is no room.
        """
        self._own = self._leaders = _make(self.path)
        activity.on_progress(self._beat)

    def join(self) -> None:
        """Another rank: makes its file.

        Raises:
          NoSpaceError: There is no room.
        """
        self._leaders = open_regular(self.path)
        self._own = _make(f"{self.path}.{self._local_rank}")

    # --- progress ---

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._own)

    def heartbeat(self) -> int:
        """Another number whenever the leader has made progress."""
        return os.fstat(self._leaders).st_mtime_ns

    # --- writes outside of steps ---

    def reserve(self, ordinal: int) -> None:
        """Takes the room for what this rank will say about a table.

        Raises:
          NoSpaceError: There is none.
        """
        if self._local_rank != 0:
            _write(self._own, b"\0", ordinal)

    def publish(self, ordinal: int, what: int) -> None:
        """The leader: it has written this to the table.

        Raises:
          NoSpaceError: There is no room.
        """
        _write(self._own, _RECORD.pack(ordinal, what), self._end)
        self._end += _RECORD.size

    def has_published(self, ordinal: int, what: int) -> bool:
        """Whether the leader has written this to the table since the last time that it had.

        Writes before it, which this rank has not asked for, are the leader's own.
        """
        while len(record := os.pread(self._leaders, _RECORD.size, self._end)) == _RECORD.size:
            self._end += _RECORD.size
            table, written = _RECORD.unpack(record)
            self._read.setdefault(table, []).append(written)
        writes = self._read.get(ordinal, [])
        if what not in writes:
            return False
        del writes[: writes.index(what) + 1]
        return True

    # --- tables that are needed no more ---

    def release(self, ordinal: int) -> None:
        """This rank needs the table no more."""
        if self._local_rank != 0:
            _write(self._own, b"\1", ordinal)

    def released_by_others(self, ordinal: int) -> bool:
        """The leader: whether no other rank of the node needs the table, or can come to need it."""
        return all(self._released_by(rank, ordinal) for rank in range(1, self._local_size))

    def _released_by(self, rank: int, ordinal: int) -> bool:
        if rank in self._ended:
            return True
        if rank not in self._others:
            try:
                self._others[rank] = open_regular(f"{self.path}.{rank}")
            except FileNotFoundError:  # it has not come yet
                return False
        descriptor = self._others[rank]
        if os.pread(descriptor, 1, ordinal) == b"\1":
            return True
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._ended.add(rank)
        os.close(self._others.pop(rank))
        return True


def _make(path: str) -> int:
    """Makes a file, under a lock of this process, and returns its descriptor, to read and to write.

    A POSIX record lock: forked children do not have it, and nothing else here opens the file in the same process.
    """
    fresh = f"{path}.tmp"
    with _room(path):
        descriptor = open_regular(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.rename(fresh, path)
    return descriptor


def _write(descriptor: int, data: bytes, offset: int) -> None:
    with _room(f"/proc/self/fd/{descriptor}"):
        os.pwrite(descriptor, data, offset)


@contextlib.contextmanager
def _room(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpaceError(f"cannot write {os.path.realpath(path)}: {error.strerror}") from error
