"""`Follower`: copies new versions from a source to a serving machine.

A version is copied to a hidden folder. Files that an earlier version has are linked; others are copied, and checked
against the manifest. A killed copy resumes where it was. The manifest comes last, and then the folder gets its name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tf_sparse_ps import _table
from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, NotFoundError
from tf_sparse_ps.folders import Folder, Trust, remove_folder
from tf_sparse_ps.serving import fault_points, retention
from tf_sparse_ps.serving.sources import Source
from tf_sparse_ps.serving.version import MANIFEST, Version, VersionManifest, complete, numbered
from tf_sparse_ps.serving.version_builder import link, publish_folder
from tf_sparse_ps.table.path_claim import claimed
from tf_sparse_ps.table.progress import bar

_PIECE = 2 << 20  # bytes; the page cache keeps what is written at once together
_COPYING = ".copying"
_SKIPPED = "skipped-"


class Copied(NamedTuple):
    """A version that was copied."""

    path: Path
    bytes: int
    """The bytes that were read from the source."""


class Follower:
    """Copies new versions of a source to a directory of this machine."""

    def __init__(self, source: Source, directory: Path, *, keep: int) -> None:
        """Reads and writes nothing.

        Args:
          source: Where versions appear.
          directory: Where servers look for them.
          keep: The number of versions to keep, at least 1.
        """
        self._source, self._directory, self._keep = source, directory, keep

    def copy_newest(self) -> Copied | None:
        """Copies the newest version that the directory lacks, unless a version is pinned.

        Returns:
          The version, or None if there is nothing to copy.

        Raises:
          DamagedFileError: A file of the source is damaged.
          NotFoundError: The version was removed meanwhile.
        """
        pinned = self.pinned()
        numbers = self._source.numbers()
        if pinned is not None:
            if pinned not in self._present() and pinned in numbers:
                return self._copy(pinned)
            return None
        present = max(self._present(), default=-1)
        wanted = [number for number in numbers if number > present and not self._skip(number).exists()]
        return self._copy(wanted[0]) if wanted else None

    # --- selection ---

    def pinned(self) -> int | None:
        """Returns the number of the pinned version, or None."""
        numbers = [
            int(name.removeprefix(retention.PIN))
            for name in (os.listdir(self._directory) if self._directory.exists() else ())
            if name.startswith(retention.PIN) and name.removeprefix(retention.PIN).isdecimal()
        ]
        return max(numbers, default=None)

    def pin(self, number: int) -> None:
        """Makes a version the newest of the directory, until `unpin`. Versions above it are removed.

        Raises:
          NotFoundError: Neither the directory nor the source has the version.
        """
        if number not in self._present():
            if number not in self._source.numbers():
                raise NotFoundError(f"neither {self._directory} nor {self._source.name} has version {number}")
            self._copy(number)
        self.unpin()
        retention.pin(self._directory / str(number))
        for other in self._present():
            if other > number:
                retention.remove(self._directory / str(other))

    def unpin(self) -> None:
        """Lets newer versions be copied again."""
        while (pinned := self.pinned()) is not None:
            retention.unpin(self._directory / str(pinned))

    def roll_back(self) -> int:
        """Removes the newest version of the directory, and does not copy it again. Newer ones are copied.

        Returns:
          The number of the version that is the newest now.

        Raises:
          InvalidArgumentError: The directory has no version before it, or one is pinned.
        """
        if (pinned := self.pinned()) is not None:
            raise InvalidArgumentError(f"version {pinned} is pinned. Unpin it, or pin the one that you want")
        present = sorted(self._present())
        if len(present) < 2:
            raise InvalidArgumentError(f"{self._directory} has no earlier version to go back to. It has {present}")
        self._skip(present[-1]).touch()
        retention.remove(self._directory / str(present[-1]))
        return present[-2]

    def _skip(self, number: int) -> Path:
        return self._directory / f"{_SKIPPED}{number}"

    def _present(self) -> list[int]:
        return [number for number, _ in complete(self._directory)]

    # --- copying ---

    def _copy(self, number: int) -> Copied:
        path = self._directory / str(number)
        with claimed(os.fspath(path), "tf-sparse-ps follow"):
            Folder.open(self._directory, Trust.GROUP, make=True).close()
            folder = path.with_name(f".{number}.partial")
            manifest = self._source.manifest(number)
            self._begin(folder, manifest)
            total = sum(entry.bytes for entry in manifest.table_files)
            with bar(total, f"copy version {number}") as progress:
                n = sum(self._copy_files(number, folder, manifest, progress.update))
            publish_folder(folder, path)
        retention.prune(self._directory, self._keep)
        return Copied(path, n)

    def _begin(self, folder: Path, manifest: VersionManifest) -> None:
        """Makes the hidden folder, or takes over that of a killed copy of the same version."""
        if folder.exists():
            with contextlib.suppress(OSError):
                if (folder / MANIFEST).read_bytes() == manifest.encode():
                    return
            remove_folder(folder, Trust.GROUP)
        os.mkdir(folder)
        fault_points.reach("folder_made")
        # Nothing reads it while the folder has another name.
        (folder / MANIFEST).write_bytes(manifest.encode())

    def _copy_files(
        self, number: int, folder: Path, manifest: VersionManifest, advance: Callable[[int], object]
    ) -> Iterator[int]:
        """Copies what is missing. Yields the bytes of each file that are read from the source."""
        known = self._known_files()
        for entry in manifest.table_files:
            target = folder / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() and entry.identity in known:
                link(known[entry.identity], target)
            if not target.exists():
                yield self._copy_table_file(number, entry.path, target, entry.crc)
            advance(entry.bytes)
            fault_points.reach("file_ready")
        for other in manifest.others:
            target = folder / other.path
            target.parent.mkdir(parents=True, exist_ok=True)
            data = self._source.read_other(number, other)
            target.write_bytes(data)
            yield len(data)

    def _known_files(self) -> dict[tuple[str, int, int], Path]:
        """Returns the files of tables in the directory, by name, size and checksum."""
        files = {}
        for _, folder in numbered(self._directory):
            with contextlib.suppress(NotFoundError, DamagedFileError):
                for entry in Version(folder).manifest.table_files:
                    files[entry.identity] = folder / entry.path
        return files

    def _copy_table_file(self, number: int, path: str, target: Path, crc: int) -> int:
        partial = target.with_name(target.name + _COPYING)
        copied = 0
        for attempt in range(2):
            began = partial.stat().st_size if partial.exists() else 0
            with self._source.open(number, path) as original, open(partial, "ab") as copy:
                original.seek(began)
                shutil.copyfileobj(original, copy, _PIECE)
                copied += copy.tell() - began
                copy.flush()
                os.fsync(copy.fileno())
            try:
                _table.verify_serving_file(os.fspath(partial))
                if int(_table.serving_file_info(os.fspath(partial))["crc"]) != crc:
                    raise DamagedFileError(
                        f"{self._source.name}/{number}/{path} is not the file that the manifest names"
                    )
            except DamagedFileError:
                os.unlink(partial)
                if attempt or not began:  # not what a killed copy has left
                    raise
                continue
            os.chmod(partial, 0o444)
            os.rename(partial, target)
            break
        return copied
