"""`Session`: the files of one run through which the ranks of a node coordinate outside of steps.

- `.session-<hex>`, written by the leader, contains two int64 for each finished write outside of steps: the ordinal of
  the table, and a number that stands for what was written. Making a table is such a write.
- `.session-<hex>.<local rank>`, written by each other rank, contains one byte for each table, at the offset of its
  ordinal. The byte is 1 when this rank has released the table.

A rank holds a lock on its file as long as its process runs. A rank that has ended needs no table. The modification time
of the leader's file is the time of the leader's last progress.
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
    """This rank's access to the session. The leader calls `begin`, then the other ranks call `join`.

    Attributes:
      path: The path of the leader's file.
    """

    def __init__(self, group_path: str, name: str, local_rank: int, local_size: int) -> None:
        """Stores the arguments, without making a file.

        Args:
          group_path: The folder of the files.
          name: The identity of this run of the job.
          local_rank, local_size: The local rank of this process (0: the leader), and the number of ranks of the node.
        """
        self.path = os.path.join(group_path, f".session-{name}")
        self._local_rank, self._local_size = local_rank, local_size
        self._own_file = self._leader_file = -1  # descriptors
        self._rank_files: dict[int, int] = {}  # on the leader, descriptors of other ranks' files by local rank
        self._end = 0  # bytes of the leader's file that this process has written, or read
        self._read: dict[int, list[int]] = {}  # by table, the writes that were read and not yet waited for
        self._ended: set[int] = set()

    def begin(self) -> None:
        """Makes the leader's file.

        Raises:
          NoSpaceError: The file system has no space left.
        """
        self._own_file = self._leader_file = _make(self.path)
        activity.on_progress(self._report_progress)

    def join(self) -> None:
        """Makes the file of another rank.

        Raises:
          NoSpaceError: The file system has no space left.
        """
        self._leader_file = open_regular(self.path)
        self._own_file = _make(f"{self.path}.{self._local_rank}")

    # --- progress ---

    def _report_progress(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._own_file)

    def heartbeat(self) -> int:
        """Returns a number that changes whenever the leader makes progress."""
        return os.fstat(self._leader_file).st_mtime_ns

    # --- writes outside of steps ---

    def reserve(self, ordinal: int) -> None:
        """Reserves the space in which this rank will release a table.

        Raises:
          NoSpaceError: The file system has no space left.
        """
        if self._local_rank != 0:
            _write(self._own_file, b"\0", ordinal)

    def publish(self, ordinal: int, content: int) -> None:
        """Records on the leader that it has written `content` to a table.

        Raises:
          NoSpaceError: The file system has no space left.
        """
        _write(self._own_file, _RECORD.pack(ordinal, content), self._end)
        self._end += _RECORD.size

    def has_published(self, ordinal: int, content: int) -> bool:
        """Returns whether the leader has written `content` to a table since this method last returned True for it.

        Earlier writes of the leader, which this rank has not waited for, are skipped.
        """
        while len(record := os.pread(self._leader_file, _RECORD.size, self._end)) == _RECORD.size:
            self._end += _RECORD.size
            table, written = _RECORD.unpack(record)
            self._read.setdefault(table, []).append(written)
        writes = self._read.get(ordinal, [])
        if content not in writes:
            return False
        del writes[: writes.index(content) + 1]
        return True

    # --- released tables ---

    def release(self, ordinal: int) -> None:
        """Records that this rank does not need a table any more."""
        if self._local_rank != 0:
            _write(self._own_file, b"\1", ordinal)

    def released_by_others(self, ordinal: int) -> bool:
        """Returns on the leader whether no other rank of the node uses a table or can still open it."""
        return all(self._released_by(rank, ordinal) for rank in range(1, self._local_size))

    def _released_by(self, rank: int, ordinal: int) -> bool:
        if rank in self._ended:
            return True
        if rank not in self._rank_files:
            try:
                self._rank_files[rank] = open_regular(f"{self.path}.{rank}")
            except FileNotFoundError:  # the rank has not joined yet
                return False
        descriptor = self._rank_files[rank]
        if os.pread(descriptor, 1, ordinal) == b"\1":
            return True
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._ended.add(rank)
        os.close(self._rank_files.pop(rank))
        return True


def _make(path: str) -> int:
    """Makes a file, locks it, and returns its descriptor for reading and writing.

    The lock is a POSIX record lock. Forked children do not inherit it. It lasts until this process ends, because no
    other code of this process opens and closes the file.
    """
    temporary = f"{path}.tmp"
    with _no_space_errors(path):
        descriptor = open_regular(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.rename(temporary, path)
    return descriptor


def _write(descriptor: int, data: bytes, offset: int) -> None:
    with _no_space_errors(f"/proc/self/fd/{descriptor}"):
        os.pwrite(descriptor, data, offset)


@contextlib.contextmanager
def _no_space_errors(path: str) -> Iterator[None]:
    """Turns the error of a full file system into a NoSpaceError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpaceError(
            f"cannot write {os.path.realpath(path)}: {error.strerror}. Free space in the folder of tables, or set "
            "TFSPS_DIR to a folder on another file system"
        ) from error
