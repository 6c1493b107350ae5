"""Allows one writer at a time for a path, so that ranks which save to the same path do not mix their files.

A writer locks the file `.<name>.lock` next to the path while it writes, and removes it afterwards. If the process dies,
the kernel releases the lock, and the next writer takes over the file. A second writer does not wait: it gets an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator

from tf_sparse_ps.errors import WriterLockedError
from tf_sparse_ps.folders import Folder, Trust, open_regular

# The endings of paths that are single files. Keras does not make the folder of such a file.
_FILES = (".keras", ".h5", ".hdf5", ".json")


@contextlib.contextmanager
def claimed(path: str, writer: str) -> Iterator[None]:
    """Claims a path for the caller, so that other processes and threads that claim it get an error.

    The claim has no effect where a lock is impossible: on remote paths, on file systems without locks, and in a folder
    that is missing or cannot be written. A missing folder is made, unless the path is a single file, because the
    writer would make it too.

    Args:
      path: A file, a folder, or the prefix of a checkpoint.
      writer: The name of the writer, for the error that others get.

    Raises:
      WriterLockedError: Another writer, which the message names, is writing to the path.
    """
    lock = None if "://" in path else _Lock.take(os.path.realpath(path), writer)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


class _Lock:
    """A locked file next to a path."""

    def __init__(self, file: str, descriptor: int) -> None:
        self._file, self._descriptor = file, descriptor

    @classmethod
    def take(cls, path: str, writer: str) -> _Lock | None:
        """Locks a path. Returns None if the file system or the folder does not allow a lock.

        Raises:
          WriterLockedError: The path is locked.
        """
        folder, name = os.path.split(path)
        file = os.path.join(folder, f".{name}.lock")
        claimant = f"{writer} (process {os.getpid()} on {socket.gethostname()})"
        try:
            if not path.endswith(_FILES):
                Folder.open(folder, Trust.GROUP, make=True).close()
            descriptor = _open_locked(file)
        except BlockingIOError as error:
            raise WriterLockedError(
                f"{path} is being written by {error.args[0] or 'another process'}. Two writers would mix their files. "
                f"Save on one rank only, or to a different path on each rank. Received: {claimant}"
            ) from None
        except OSError:
            return None
        # Another user of a shared folder may have given the lock's name to a file of this user.
        facts = os.fstat(descriptor)
        if facts.st_uid == os.geteuid() and facts.st_nlink == 1:
            with contextlib.suppress(OSError):  # the file system may be full
                os.truncate(descriptor, 0)
                os.write(descriptor, claimant.encode())
        return cls(file, descriptor)

    def release(self) -> None:
        """Removes the file and releases the lock."""
        with contextlib.suppress(OSError):
            os.unlink(self._file)
        with contextlib.suppress(OSError):
            # Closing the descriptor is not enough, because a forked child may have a copy.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def _open_locked(file: str) -> int:
    """Opens and locks the file of this name, and returns its descriptor.

    Raises:
      BlockingIOError: Another writer has locked the file. The argument is the file's content.
      OSError: The file cannot be opened or locked.
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
        os.close(descriptor)  # the previous writer has removed this file, and another one may have its name
