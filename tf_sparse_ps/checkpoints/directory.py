"""`CheckpointDirectory`: the checkpoints of a training job, a folder each; a kill at any time leaves whole ones.

    <directory>/step-000000000040/manifest.json, t0000-user.tfsps, variables.npz, ...

A checkpoint is made in `.saving-...`: its files are written and synced, then the manifest, then the folder; it gets its
name by a rename, and the directory is synced. One that is removed loses its name first, to `.removing-...`. What killed
saves have left is removed by the next one. A name is used once: a step that is saved again is `step-000000000040-2`.

An increment has the rows that have changed since the checkpoint before it, and names those that it builds on: a base
and the increments between. It is whole if they are, and they stay as long as it does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps.checkpoints import fault_points, manifest
from tf_sparse_ps.checkpoints.manifest import FileEntry, Manifest
from tf_sparse_ps.errors import AccessError, DamagedFileError, NotFoundError, TableError
from tf_sparse_ps.folders import Folder, Trust, open_regular, read_regular, remove_folder
from tf_sparse_ps.table.path_claim import claimed

_NAME = re.compile(r"step-(\d{12,19})(?:-([1-9]\d{0,8}))?")
_SAVING, _REMOVING = ".saving-", ".removing-"
_CHUNK_BYTES = 4 << 20
_MANIFEST_BYTES = 64 << 20  # at most
# What a damaged disk or file system answers, or one in which files were mixed up.
_DAMAGE = {
    errno.EIO,
    errno.EUCLEAN,
    errno.EBADMSG,
    errno.EILSEQ,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
}


class Found(NamedTuple):
    """A folder that has the name of a checkpoint."""

    step: int
    attempt: int
    """From 1 on, of those of its step."""
    path: Path


class Checked(NamedTuple):
    """A checkpoint all of whose files have been read, or, by `look`, are there."""

    path: Path
    manifest: Manifest
    data: bytes
    """Of the manifest's file."""
    builds_on: tuple[Checked, ...] = ()
    """Of an increment: the base, and the increments before it."""

    @property
    def parts(self) -> tuple[Checked, ...]:
        """All that the rows of tables are in, the oldest first, this one last."""
        return (*self.builds_on, self)


# Looks at one checkpoint, without what it builds on.
_Look = Callable[[Path], Checked]


class SaveFolder:
    """Where files of a save are written: this process's own (`Save`), or another's, to which it adds a part.

    Attributes:
      name: That the checkpoint will have.
      folder: Where its files are to be written meanwhile.
      path: Where it will be.
      files: That have been added here.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        self.name, self.folder, self.path = path.name, folder, path
        self.files: list[FileEntry] = []

    def add(self, name: str, crc32: str | None = None) -> None:
        """A file of this name has been written to `folder`, and is complete.

        Args:
          name: Of the file.
          crc32: Of its bytes, if it is on the disk already; None: both are still to be done.
        """
        path = self.folder / name
        if crc32 is None:
            _sync(path)
            crc32 = file_crc32(path)
        self.files.append(FileEntry(name, path.stat().st_size, crc32))
        fault_points.reach("file_written")

    def size(self) -> int:
        """Bytes of all files that are there, whoever writes them."""
        size = 0
        with contextlib.suppress(FileNotFoundError):  # it has become a checkpoint, or has failed
            for one in self.folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    size += one.stat().st_size
        return size


class Save(SaveFolder):
    """A save in progress; see `CheckpointDirectory.saving`."""

    def discard(self) -> None:
        """There is nothing to be saved."""
        remove_folder(self.folder, Trust.GROUP)

    def finish(self, content: Manifest) -> None:
        """Makes it a checkpoint.

        Args:
          content: Of the manifest, whose `name` and `files` are this save's.
        """
        path = self.folder / manifest.NAME
        path.write_bytes(content.encode())
        _sync(path)
        fault_points.reach("manifest_written")
        _sync(self.folder)
        fault_points.reach("folder_synced")
        os.rename(self.folder, self.path)
        fault_points.reach("renamed")
        _sync(self.path.parent)
        fault_points.reach("directory_synced")


class CheckpointDirectory:
    """The checkpoints in a directory. Needs no TensorFlow.

    Attributes:
      path: The directory, which the first save makes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Makes and reads nothing."""
        self.path = Path(os.path.abspath(path))

    def find(self) -> list[Found]:
        """All that have the name of a checkpoint, the newest first; nothing of them has been read."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None:
                    found.append(Found(int(match[1]), int(match[2] or 1), self.path / entry.name))
        return sorted(found, reverse=True)

    def newest(self, progress: Callable[[str, int], None] | None = None) -> tuple[Checked | None, list[Path]]:
        """The newest checkpoint that is whole. Reads all of its files.

        A warning names each newer one that is damaged or incomplete, with the reason.

        Args:
          progress: Called with a file's name and the bytes of it that were read since the call before.

        Returns:
          The checkpoint, None if there is none; and the folders of those that were passed over.

        Raises:
          UnsupportedError: The newest whole one is of a later version of the format.
          OSError: One could not be read, which says nothing of whether it is whole.
        """
        skipped: list[Path] = []
        found = self._whole(1, skipped, progress)
        return (found[0] if found else None), skipped

    def newest_to_read_once(
        self, progress: Callable[[str, int], None] | None = None
    ) -> tuple[Checked | None, list[Path], bool]:
        """As `newest`, for who finds by itself, in reading the rows of tables, that they are damaged.

        Of the checkpoint that it returns files with rows are not read, if there is an older one to go back to.

        Returns:
          Those of `newest`, and whether all files were read.
        """
        named = self.find()
        if any(_seems_whole(one.path) for one in named[1:]):
            with contextlib.suppress(DamagedFileError, NotFoundError, OSError):  # `newest` meets it again
                found = _with_chain(named[0].path, _once(lambda path: _check_alone(path, progress, rows=False)))
                if all(part.rows_checksum is not None for one in found.parts for part in one.manifest.all_parts):
                    return found, [], False
        return *self.newest(progress), True

    def whole(self, n: int) -> list[Checked]:
        """The n newest checkpoints that are whole, the newest first, or fewer; otherwise as `newest`."""
        return self._whole(n, [], None)

    def _whole(self, n: int, skipped: list[Path], progress: Callable[[str, int], None] | None) -> list[Checked]:
        found: list[Checked] = []
        look_once = _once(lambda path: _check_alone(path, progress))
        for one in self.find():
            if len(found) == n:
                break
            try:
                found.append(_with_chain(one.path, look_once))
            except Exception as error:
                if not is_damage(error):
                    raise
                warnings.warn(f"checkpoint {one.path} is passed over: {error}", stacklevel=3)
                skipped.append(one.path)
        return found

    @staticmethod
    def names(path: Path) -> bool:
        """Whether a path is named as a checkpoint is."""
        return _NAME.fullmatch(Path(os.path.abspath(path)).name) is not None

    @contextlib.contextmanager
    def saving(self, step: int, writer: str) -> Iterator[Save]:
        """Surrounds a save: what is written in the block becomes a checkpoint by `Save.finish`, or is removed.

        Removes first what killed saves have left.

        Args:
          step: Of the checkpoint.
          writer: Who saves, for the error of others.

        Raises:
          WriterLockedError: Another process is saving to the directory.
          OSError: From the file system.
        """
        self._make()
        with claimed(str(self.path / "checkpoints"), writer):
            fault_points.reach("claimed")
            self._remove_leftovers()
            fault_points.reach("leftovers_removed")
            attempt = max((one.attempt for one in self.find() if one.step == step), default=0) + 1
            name = f"step-{step:012d}" + (f"-{attempt}" if attempt > 1 else "")
            folder = self.path / f"{_SAVING}{name}-{secrets.token_hex(4)}"
            folder.mkdir(0o755)
            try:
                fault_points.reach("folder_made")
                yield Save(folder, self.path / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._remove_aside(folder)
                raise

    def prune(self, saved: Path, keep: int, passed_over: Sequence[Path] = ()) -> None:
        """Removes old checkpoints. Within `saving`.

        Args:
          saved: The one that was saved last. It stays, and with it the `keep` - 1 newest ones before it that have a
            whole manifest and all files, and what they build on. Where all of them build on one base and `keep` is
            above 1, the newest one before that base stays, too: damage to one file does not lose all.
          keep: At least 1.
          passed_over: Damaged ones, which go, also if they are of later steps.
        """
        found = self.find()
        last = next((one for one in found if one.path == saved), None)
        if last is None:  # somebody has removed it
            return
        look_once = _once(_look_alone)
        needed: set[Path] = set()
        bases: set[Path] = set()
        n_kept = 0
        for one in found:
            enough = n_kept >= keep and (keep == 1 or len(bases) > 1)
            if one > last or enough or one.path in passed_over:
                continue
            try:
                parts = [part.path for part in _with_chain(one.path, look_once).parts]
            except (TableError, OSError):
                if one.path == saved:
                    raise
                continue
            if n_kept >= keep and parts[0] in bases:
                continue
            n_kept += 1
            bases.add(parts[0])
            needed.update(parts)
        # The newest first: an increment goes before what it builds on.
        for one in found:
            if one.path not in needed and (one < last or one.path in passed_over):
                self.remove(one.path)

    def _make(self) -> None:
        new = not self.path.is_dir()
        Folder.open(self.path, Trust.GROUP, make=True).close()
        if new:
            _sync(self.path.parent)

    def remove(self, path: Path) -> None:
        """Removes a checkpoint. Within `saving`. A checkpoint of another user stays, and a warning names it."""
        try:
            self._remove_aside(path, lambda: fault_points.reach("set_aside"))
        except AccessError as error:
            warnings.warn(f"an old checkpoint stays: {error}", stacklevel=2)
            return
        fault_points.reach("removed")

    def _remove_aside(self, path: Path, then: Callable[[], None] | None = None) -> None:
        """Removes a folder that another machine may be writing to: it does not find the folder any more.

        Raises:
          AccessError: The folder belongs to another user. It stays.
        """
        with Folder.open(self.path, Trust.GROUP) as folder:
            owner, owner_of_it = folder.own_uid(), folder.status(path.name).st_uid
            if owner != owner_of_it:
                raise AccessError(f"{path} belongs to user {owner_of_it}: it is not removed")
            aside = f"{_REMOVING}{path.name}-{secrets.token_hex(4)}"
            folder.rename(path.name, aside)
            if then is not None:
                then()
            folder.remove(aside, owner)

    def _remove_leftovers(self) -> None:
        with Folder.open(self.path, Trust.GROUP) as folder:
            owner = folder.own_uid()
            for name in folder.names():
                with contextlib.suppress(AccessError):  # another user's, who removes it
                    if name.startswith(_SAVING):
                        self._remove_aside(self.path / name)
                    elif name.startswith(_REMOVING):
                        folder.remove(name, owner)


def check(path: Path, progress: Callable[[str, int], None] | None = None, *, rows: bool = True) -> Checked:
    """Reads all files of a checkpoint, and of those that it builds on.

    Args:
      path: Its folder.
      progress: As of `CheckpointDirectory.newest`.
      rows: Those with rows of tables, too; of them else only the sizes.

    Raises:
      NotFoundError, DamagedFileError: A file is missing, or is not what was written; or a checkpoint that it builds on
        is another one.
      UnsupportedError: It is of a later version.
    """
    return _with_chain(path, lambda one: _check_alone(one, progress, rows=rows))


def look(path: Path) -> Checked:
    """What the manifests of a checkpoint, and of those that it builds on, say. Other files are looked at for sizes.

    Raises:
      NotFoundError, DamagedFileError, UnsupportedError: As `check`, as far as that can be seen.
    """
    return _with_chain(path, _look_alone)


def is_damage(error: Exception) -> bool:
    """Whether an error in reading a checkpoint says that it is damaged or incomplete.

    No permission, or too many open files, say nothing of it: who passed over it then would lose steps.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DAMAGE
    return isinstance(error, DamagedFileError | NotFoundError)


def sees(folder: Path, longest_s: float = 5.0) -> bool:
    """Whether a folder is there that another machine has just made: a network file system may take a moment to tell."""
    until = time.monotonic() + longest_s
    while True:
        # A list of names is asked for anew; whether one name is there may be remembered.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if folder.name in os.listdir(folder.parent):
                return True
        if time.monotonic() > until:
            return False
        time.sleep(0.1)


def _with_chain(path: Path, look_at: _Look) -> Checked:
    """A checkpoint with what it builds on, each of which must be the very one that it was bound to."""
    own = look_at(path)
    content = own.manifest
    before: list[Checked] = []
    for number, link in enumerate(content.chain):
        if _NAME.fullmatch(link.name) is None:
            raise DamagedFileError(f"{path / manifest.NAME} is damaged: it builds on {link.name!r}")
        try:
            one = look_at(path.parent / link.name)
        except (DamagedFileError, NotFoundError) as error:
            raise type(error)(f"it builds on {link.name}, and {error}") from None
        found = (one.manifest.id, one.manifest.run, one.manifest.chain)
        if found != (link.id, content.run, content.chain[:number]):
            raise DamagedFileError(
                f"it builds on {link.name} with id {link.id} of run {content.run}, and what has this name now is "
                f"another checkpoint, {one.manifest.id} of run {one.manifest.run}: its changes are none to that"
            )
        before.append(one)
    return own._replace(builds_on=tuple(before))


def _once(look_at: _Look) -> _Look:
    """Remembers what was found, errors too."""
    known: dict[Path, Checked | DamagedFileError | NotFoundError] = {}

    def look_once(path: Path) -> Checked:
        if path not in known:
            try:
                known[path] = look_at(path)
            except (DamagedFileError, NotFoundError) as error:
                known[path] = error
        found = known[path]
        if isinstance(found, Checked):
            return found
        raise found

    return look_once


def _seems_whole(path: Path) -> bool:
    try:
        return bool(look(path))
    except (TableError, OSError):
        return False


def _check_alone(path: Path, progress: Callable[[str, int], None] | None = None, *, rows: bool = True) -> Checked:
    """Reads all files, or all but those with the rows of tables."""
    found = _look_alone(path)
    of_rows = set() if rows else found.manifest.row_files
    for one in found.manifest.files:
        if one.name in of_rows:
            continue
        file = path / one.name
        if (crc32 := file_crc32(file, progress)) != one.crc32:
            raise DamagedFileError(f"{file} is damaged: its checksum is {crc32}, and was {one.crc32}")
    return found


def _look_alone(path: Path) -> Checked:
    data, content = _read_manifest(path)
    for one in content.files:
        _check_size(path / one.name, one)
    return Checked(path, content, data)


def _read_manifest(path: Path) -> tuple[bytes, Manifest]:
    file = path / manifest.NAME
    try:
        with read_regular(file, error=DamagedFileError) as stream:
            data = stream.read(_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{file} is missing: the checkpoint is incomplete") from None
    if len(data) > _MANIFEST_BYTES:
        raise DamagedFileError(f"{file} is damaged: it has more than {_MANIFEST_BYTES} bytes")
    content = manifest.Manifest.decode(data, str(file))
    if content.name != path.name:
        raise DamagedFileError(f"{file} is that of {content.name!r}: the checkpoint was renamed, or mixed with another")
    return data, content


def _check_size(file: Path, expected: FileEntry) -> None:
    try:
        found = os.lstat(file)
    except FileNotFoundError:
        raise NotFoundError(f"{file} is missing: the checkpoint is incomplete") from None
    if not stat.S_ISREG(found.st_mode):
        raise DamagedFileError(f"{file} is damaged: it is no regular file")
    if found.st_size != expected.size:
        raise DamagedFileError(f"{file} is damaged: it has {found.st_size} bytes, and had {expected.size}")


def file_crc32(path: Path, progress: Callable[[str, int], None] | None = None) -> str:
    """The CRC-32 of a file's bytes, 8 hexadecimal digits."""
    crc, buffer = 0, memoryview(bytearray(_CHUNK_BYTES))
    with os.fdopen(open_regular(path, error=DamagedFileError), "rb", buffering=0) as stream:
        while n := stream.readinto(buffer):
            crc = zlib.crc32(buffer[:n], crc)
            if progress is not None:
                progress(path.name, n)
    return f"{crc:08x}"


def _sync(path: Path) -> None:
    """Brings a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems have no fsync of folders and say EINVAL: then there is nothing more to do.
        if error.errno != errno.EINVAL or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)
