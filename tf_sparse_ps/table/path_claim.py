"""One writer at a time for a path: what several ranks write to one path at once is nobody's model.

A writer locks `.<name>.lock` beside the path while it writes, and removes it afterwards. The kernel gives up the lock
of a process that dies, and the next writer takes over the file. Nobody waits: the second writer is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator

from tf_sparse_ps.errors import WriterLockedError
from tf_sparse_ps.folders import Folder, Trust, open_regular

# Where the path is a file, whoever writes it does not make its folder.
_FILES = (".keras", ".h5", ".hdf5", ".json")


@contextlib.contextmanager
def claimed(path: str, writer: str) -> Iterator[None]:
    """Keeps other processes, and other threads, that claim the path from writing to it.

    Nothing is kept where no lock can be: remote paths, file systems without locks, a folder that cannot be written or
    is missing. A folder that is missing is made if the path is no single file, as its writer would make it.

    Args:
      path: A file, a folder, or the prefix of a checkpoint.
      writer: Who writes, for the others' error.

    Raises:
      WriterLockedError: Another one is writing to the path, with its name.
    """
    file = None if "://" in path else _Lock.take(os.path.realpath(path), writer)
    try:
        yield
    finally:
        if file is not None:
            file.give_up()


class _Lock:
    """A locked file beside a path."""

    def __init__(self, file: str, descriptor: int) -> None:
        self._file, self._descriptor = file, descriptor

    @classmethod
    def take(cls, path: str, writer: str) -> _Lock | None:
        """Locks it. None: that is not possible here.

        Raises:
          WriterLockedError: It is locked.
        """
        folder, name = os.path.split(path)
        file = os.path.join(folder, f".{name}.lock")
        me = f"{writer} (process {os.getpid()} on {socket.gethostname()})"
        try:
            if not path.endswith(_FILES):
                Folder.open(folder, Trust.GROUP, make=True).close()
            descriptor = _open_locked(file)
        except BlockingIOError as error:
            raise WriterLockedError(
                f"{path} is being written by {error.args[0] or 'another process'}. Save on one rank alone, or to a "
                f"path of each rank's own. Received: {me}"
            ) from None
        except OSError:
            return None
        # Another user of a shared folder may have given the lock's name to a file of this user.
        facts = os.fstat(descriptor)
        if facts.st_uid == os.geteuid() and facts.st_nlink == 1:
            with contextlib.suppress(OSError):  # no room, perhaps
                os.truncate(descriptor, 0)
                os.write(descriptor, me.encode())
        return cls(file, descriptor)

    def give_up(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            os.unlink(self._file)
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # closing is not enough: a forked child may have it, too
        os.close(self._descriptor)


def _open_locked(file: str) -> int:
    """Opens the file of this name, and locks it.

    Raises:
      BlockingIOError: Another one has; with what is in the file.
      OSError: That is not possible.
    """
    while True:
        descriptor = open_regular(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(file, follow_symlinks=False)):
                return descriptor
        except FileNotFoundError:
            pass
        except BlockingIOError:
            content = os.pread(descriptor, 1000, 0).decode(errors="replace")
            os.close(descriptor)
            raise BlockingIOError(content) from None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever had it locked before has removed it: there may be another one by now
