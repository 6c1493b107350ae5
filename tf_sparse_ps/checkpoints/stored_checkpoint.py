"""`StoredCheckpoint`: one checkpoint on the disk, with those that it builds on. Needs no TensorFlow.

`look` reads the manifest and compares the sizes of files. `check` also reads the files and compares their checksums.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps.checkpoints import manifest
from tf_sparse_ps.checkpoints.manifest import FileEntry, Manifest
from tf_sparse_ps.errors import DamagedFileError, NotFoundError
from tf_sparse_ps.folders import open_regular, read_regular

FOLDER_NAME = re.compile(r"step-(\d{12,19})(?:-([1-9]\d{0,8}))?")  # the step; from the second attempt on, its number
Progress = Callable[[str, int], None]  # called with a file's name and the bytes that were read since the call before

_CHUNK_BYTES = 4 << 20
_MOST_MANIFEST_BYTES = 64 << 20
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


class StoredCheckpoint(NamedTuple):
    """A checkpoint whose files have been read, or, by `look`, are there."""

    path: Path
    manifest: Manifest
    manifest_bytes: bytes
    """The content of the manifest's file."""
    builds_on: tuple[StoredCheckpoint, ...] = ()
    """The base of an increment, and the increments before it."""
    url: str | None = None
    """The URL of the folder, if this is a copy, or the checkpoint was only looked at there."""

    @property
    def shown(self) -> str:
        """The URL of the folder, or else its path, for messages."""
        return self.url or str(self.path)

    @property
    def parts(self) -> tuple[StoredCheckpoint, ...]:
        """All checkpoints that hold rows of this one, the oldest first and this one last."""
        return (*self.builds_on, self)


def check(path: Path, progress: Progress | None = None, *, rows: bool = True) -> StoredCheckpoint:
    """Reads all files of a checkpoint, and of those that it builds on.

    Args:
      path: The checkpoint's folder.
      progress: Called while files are read.
      rows: Also read the files with rows of tables. Otherwise only their sizes are compared.

    Raises:
      NotFoundError, DamagedFileError: A file is missing, or is not what was written; or a checkpoint that it builds on
        has been replaced by another one.
      UnsupportedError: The checkpoint is of a later version of the format.
    """
    return CheckpointReader(progress, rows=rows).read(path)


def look(path: Path) -> StoredCheckpoint:
    """Reads the manifests of a checkpoint and of those that it builds on, and compares the sizes of their files.

    Raises:
      NotFoundError, DamagedFileError, UnsupportedError: As `check`, as far as that can be seen.
    """
    return CheckpointReader(checksums=False).read(path)


def is_damage(error: Exception) -> bool:
    """Whether an error in reading a checkpoint says that it is damaged or incomplete.

    A lack of permission, or of file descriptors, says nothing of it: to skip the checkpoint then would lose steps.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DAMAGE
    return isinstance(error, DamagedFileError | NotFoundError)


class CheckpointReader:
    """Reads checkpoints of one directory, each with those that it builds on.

    Each folder is read once, however many checkpoints build on it. Errors are remembered, too.
    """

    def __init__(self, progress: Progress | None = None, *, checksums: bool = True, rows: bool = True) -> None:
        """Reads nothing yet.

        Args:
          progress: Called while files are read.
          checksums: Read the files and compare their checksums. Otherwise only their sizes are compared.
          rows: Also for the files with rows of tables.
        """
        self._progress, self._checksums, self._rows = progress, checksums, rows
        self._results: dict[Path, StoredCheckpoint | DamagedFileError | NotFoundError] = {}

    def read(self, path: Path) -> StoredCheckpoint:
        """Reads a checkpoint with its chain. Each link must be the very checkpoint that was built on.

        Raises:
          NotFoundError, DamagedFileError, UnsupportedError: As `check`.
        """
        checkpoint = self._read_alone(path)
        content = checkpoint.manifest
        chain: list[StoredCheckpoint] = []
        for number, link in enumerate(content.chain):
            if FOLDER_NAME.fullmatch(link.name) is None:
                raise DamagedFileError(f"{checkpoint.shown}/{manifest.NAME} is damaged: it builds on {link.name!r}")
            try:
                base = self._read_alone(path.parent / link.name)
            except (DamagedFileError, NotFoundError) as error:
                raise type(error)(f"it builds on {link.name}, and {error}") from None
            identity = (base.manifest.id, base.manifest.run, base.manifest.chain)
            if identity != (link.id, content.run, content.chain[:number]):
                raise DamagedFileError(
                    f"it builds on {link.name} with id {link.id} of run {content.run}, and what has this name now is "
                    f"another checkpoint, {base.manifest.id} of run {base.manifest.run}: the changes do not fit it"
                )
            chain.append(base)
        return checkpoint._replace(builds_on=tuple(chain))

    def _read_alone(self, path: Path) -> StoredCheckpoint:
        if path not in self._results:
            try:
                self._results[path] = self._check_files(path) if self._checksums else self.look(path)
            except (DamagedFileError, NotFoundError) as error:
                self._results[path] = error
        result = self._results[path]
        if isinstance(result, StoredCheckpoint):
            return result
        raise result

    def look(self, path: Path) -> StoredCheckpoint:
        """Reads the manifest of one checkpoint, without its chain, and compares the sizes of its files."""
        return _look_alone(path)

    def _check_files(self, path: Path) -> StoredCheckpoint:
        checkpoint = self.look(path)
        left_out = set() if self._rows else checkpoint.manifest.row_files
        for entry in checkpoint.manifest.files:
            if entry.name in left_out:
                continue
            file = path / entry.name
            if (crc32 := file_crc32(file, self._progress)) != entry.crc32:
                raise DamagedFileError(f"{file} is damaged: its checksum is {crc32}, and was {entry.crc32}")
        return checkpoint


def _look_alone(path: Path) -> StoredCheckpoint:
    manifest_bytes, content = _read_manifest(path)
    for entry in content.files:
        _check_size(path / entry.name, entry)
    return StoredCheckpoint(path, content, manifest_bytes)


def _read_manifest(path: Path) -> tuple[bytes, Manifest]:
    file = path / manifest.NAME
    try:
        with read_regular(file, error=DamagedFileError) as stream:
            manifest_bytes = stream.read(_MOST_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{file} is missing: the checkpoint is incomplete") from None
    if len(manifest_bytes) > _MOST_MANIFEST_BYTES:
        raise DamagedFileError(f"{file} is damaged: it has more than {_MOST_MANIFEST_BYTES} bytes")
    return manifest_bytes, decode(manifest_bytes, str(file), path.name)


def decode(manifest_bytes: bytes, where: str, name: str) -> Manifest:
    """Returns the manifest of a file's bytes.

    Args:
      manifest_bytes: The bytes.
      where: The file, for messages.
      name: The name of the checkpoint's folder.

    Raises:
      DamagedFileError: The bytes are not what was written, or were written to another folder.
      UnsupportedError: The checkpoint is of a later version.
    """
    content = Manifest.decode(manifest_bytes, where)
    if content.name != name:
        raise DamagedFileError(
            f"{where} is that of {content.name!r}: the checkpoint was renamed, or mixed with another"
        )
    return content


def _check_size(file: Path, entry: FileEntry) -> None:
    try:
        status = os.lstat(file)
    except FileNotFoundError:
        raise NotFoundError(f"{file} is missing: the checkpoint is incomplete") from None
    if not stat.S_ISREG(status.st_mode):
        raise DamagedFileError(f"{file} is damaged: it is no regular file")
    if status.st_size != entry.size:
        raise DamagedFileError(f"{file} is damaged: it has {status.st_size} bytes, and had {entry.size}")


def file_crc32(path: Path, progress: Progress | None = None) -> str:
    """Returns the CRC-32 of a file's bytes: 8 hexadecimal digits."""
    crc, buffer = 0, memoryview(bytearray(_CHUNK_BYTES))
    with os.fdopen(open_regular(path, error=DamagedFileError), "rb", buffering=0) as stream:
        while n := stream.readinto(buffer):
            crc = zlib.crc32(buffer[:n], crc)
            if progress is not None:
                progress(path.name, n)
    return f"{crc:08x}"
