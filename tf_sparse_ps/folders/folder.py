"""`Folder`: a directory descriptor, with functions that open, rename and remove the names in the directory."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import IO

from tf_sparse_ps.errors import AccessError, TableError
from tf_sparse_ps.folders import path_walk
from tf_sparse_ps.folders.path_walk import Trust

_PRIVATE = 0o700
_PRIVATE_FILE = 0o600
# The names of files that `own_uid` creates begin with this. A process that is killed there can leave one.
PROBE = ".owner-probe-"
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class Folder:
    """An open folder. Use it as a context manager, or call `close`.

        with Folder.open("/dev/shm/tables", Trust.OWN, make=True) as tables, tables.own("group") as group:
            group.remove("leftover")

    Attributes:
      path: The absolute path of the folder, for messages and for functions that take no descriptor.
      descriptor: The descriptor, for `dir_fd` arguments.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        """Takes over a descriptor. Callers use `Folder.open`."""
        self.path, self.descriptor = path, descriptor

    @classmethod
    def open(cls, path: str | os.PathLike[str], trust: Trust, *, make: bool = False) -> Folder:
        """Opens a folder by its path.

        Args:
          path: The folder.
          trust: Whom the path may depend on.
          make: Whether to create the folder and those above it.

        Raises:
          AccessError: Somebody else could replace a component of the path.
          OSError: The file system reports an error.
        """
        absolute = os.path.abspath(path)
        return cls(absolute, path_walk.open_path(absolute, trust, make=make))

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.descriptor)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- entries ---

    def names(self) -> list[str]:
        """Returns the names of all entries, sorted."""
        return sorted(os.listdir(self.descriptor))

    def status(self, name: str) -> os.stat_result:
        """Returns the status of an entry itself; for a symbolic link, the status of the link."""
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def is_folder(self, name: str) -> bool:
        """Whether an entry is a folder, and not a link to one."""
        try:
            return stat.S_ISDIR(self.status(name).st_mode)
        except FileNotFoundError:
            return False

    def own(self, name: str, *, make: bool = False) -> Folder:
        """Opens a folder in this one that belongs to this user and that nobody else can write.

        Args:
          name: The name of the folder to open.
          make: Whether to create it, with mode 0700.

        Raises:
          AccessError: The entry belongs to another user, others can write to it, or it is not a folder.
          OSError: The file system reports an error.
        """
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, _PRIVATE, dir_fd=self.descriptor)
        folder = self._open_folder(name)
        try:
            folder.check_own()
        except BaseException:
            folder.close()
            raise
        return folder

    def check_own(self) -> None:
        """Checks that this folder belongs to this user and that nobody else can write to it.

        Raises:
          AccessError: The folder belongs to another user, or others can write to it.
        """
        facts = os.fstat(self.descriptor)
        if facts.st_uid != os.geteuid():
            raise AccessError(
                f"{self.path} belongs to user {facts.st_uid}, and this process runs as user {os.geteuid()}. Name "
                "another path"
            )
        if facts.st_mode & 0o022:
            raise AccessError(
                f"{self.path} can be written by others (mode {stat.S_IMODE(facts.st_mode):04o}). Run `chmod go-w "
                f"{self.path}`, or name another path"
            )

    def make_private(self) -> None:
        """Lets nobody but this user list or read this folder, which belongs to this user."""
        if os.fstat(self.descriptor).st_mode & 0o077:
            os.fchmod(self.descriptor, _PRIVATE)

    def open_file(
        self, name: str, flags: int, mode: int = _PRIVATE_FILE, *, error: type[TableError] = AccessError
    ) -> int:
        """Opens a regular file in this folder. A FIFO or a device cannot block the call.

        Args:
          name: The name of the file.
          flags: The flags for `os.open`.
          mode: The mode of the file, if the call creates it.
          error: The class to raise if the entry is not a regular file.

        Returns:
          A descriptor, which the caller closes.

        Raises:
          error: The entry is a link, a FIFO, a device or a folder.
          OSError: The file system reports an error.
        """
        return _open_file(name, os.path.join(self.path, name), flags, mode, self.descriptor, error)

    # --- removal ---

    def rename(self, name: str, new_name: str) -> None:
        """Gives an entry another name in this folder."""
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Removes a file or a link."""
        os.unlink(name, dir_fd=self.descriptor)

    def remove_empty(self, name: str) -> None:
        """Removes an empty folder in this one."""
        os.rmdir(name, dir_fd=self.descriptor)

    def remove(self, name: str, owner: int | None = None) -> None:
        """Removes a folder of this user in this one, and everything in it.

        The folder gets mode 0700 first, so that nobody else can add or exchange an entry meanwhile. Links in it are
        removed, not followed. Folders in it that are on another file system stay.

        Args:
          name: The name of the folder to remove.
          owner: The user id that this user's files have here (`own_uid`); None: the user id of the process.

        Raises:
          AccessError: The folder, or one in it, belongs to another user.
          FileNotFoundError: The folder does not exist.
          OSError: The file system reports an error, such as ENOTEMPTY if an entry stays.
        """
        with self._open_folder(name) as folder:
            folder._empty(os.geteuid() if owner is None else owner)
        os.rmdir(name, dir_fd=self.descriptor)

    def own_uid(self) -> int:
        """Returns the user id that files of this user get in this folder. A file server may map root to nobody."""
        try:
            probe = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, _PRIVATE_FILE, dir_fd=self.descriptor)
            name = None
        except OSError:  # file servers have no files without a name
            name = f"{PROBE}{secrets.token_hex(8)}"
            probe = self.open_file(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE_FILE)
        try:
            return os.fstat(probe).st_uid
        finally:
            os.close(probe)
            if name is not None:
                with contextlib.suppress(FileNotFoundError):  # another process of this user has removed it
                    self.unlink(name)

    def _empty(self, owner: int) -> None:
        facts = os.fstat(self.descriptor)
        if facts.st_uid != owner:
            raise AccessError(f"{self.path} belongs to user {facts.st_uid} and is not removed. Its owner can remove it")
        if stat.S_IMODE(facts.st_mode) != _PRIVATE:
            os.fchmod(self.descriptor, _PRIVATE)
        for name in self.names():
            try:
                entry = self.status(name)
            except FileNotFoundError:
                continue  # another process of this user removes the same folder
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISDIR(entry.st_mode):
                    self.unlink(name)
                elif entry.st_dev == facts.st_dev:
                    self.remove(name, owner)

    def _open_folder(self, name: str) -> Folder:
        path = os.path.join(self.path, name)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return Folder(path, os.open(name, flags, dir_fd=self.descriptor))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise AccessError(f"{path} is {_kind_of(path)}, not a folder. Name another path") from None


def remove_folder(path: str | os.PathLike[str], trust: Trust) -> None:
    """Removes a folder of this user by its path. Raises the errors of `Folder.open` and `Folder.remove`."""
    absolute = os.path.abspath(path)
    with Folder.open(os.path.dirname(absolute), trust) as parent:
        # Tables are never on a file server. They must be removable when the file system is too full for a probe.
        owner = parent.own_uid() if trust is Trust.GROUP else None
        parent.remove(os.path.basename(absolute), owner)


def open_regular(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    mode: int = _PRIVATE_FILE,
    *,
    error: type[TableError] = AccessError,
) -> int:
    """Opens a regular file by its path. See `Folder.open_file`."""
    return _open_file(os.fspath(path), os.fspath(path), flags, mode, None, error)


@contextlib.contextmanager
def read_regular(path: str | os.PathLike[str], *, error: type[TableError] = AccessError) -> Iterator[IO[bytes]]:
    """Opens a regular file for reading, as a context manager. See `Folder.open_file`."""
    with os.fdopen(open_regular(path, error=error), "rb") as stream:
        yield stream


def _open_file(name: str, path: str, flags: int, mode: int, folder: int | None, error: type[TableError]) -> int:
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError as failure:
        # ENXIO: a FIFO without a reader, or a socket. EISDIR: a folder that is opened for writing.
        if failure.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        raise error(f"{path} is {_kind_of(path)}, not a regular file") from None
    file_mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(file_mode):
        os.close(descriptor)
        raise error(f"{path} is {_KINDS.get(stat.S_IFMT(file_mode), 'something else')}, not a regular file")
    return descriptor


def _kind_of(path: str) -> str:
    try:
        if os.path.islink(path):
            return f"a symbolic link to {os.readlink(path)}"
        return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode), "something else")
    except OSError:
        return "something else"


def sync_file(path: str | os.PathLike[str]) -> None:
    """Writes a file's bytes to the disk. Does not follow a link."""
    _fsync(path, os.O_NOFOLLOW | os.O_NONBLOCK)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Writes a folder's list of names to the disk."""
    try:
        _fsync(path, os.O_DIRECTORY)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have no fsync of folders: there is nothing more to do
            raise


def _fsync(path: str | os.PathLike[str], flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
