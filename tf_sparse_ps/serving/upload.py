"""`Uploader`: copies new versions to a directory behind a URL, from where servers follow them."""

from __future__ import annotations

import shutil
from typing import Any

from tf_sparse_ps.errors import DamagedFileError
from tf_sparse_ps.serving.sources import Source, source
from tf_sparse_ps.serving.version import MANIFEST, VersionManifest
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.urls import file_system

_PIECE = 8 << 20  # bytes


class Uploader:
    """Copies new versions of a source to a URL. A version is complete when its manifest is there, which comes last."""

    def __init__(self, origin: Source, url: str, *, keep: int) -> None:
        """Reads and writes nothing.

        Args:
          origin: Where versions appear.
          url: The directory, a URL of fsspec.
          keep: The number of versions to keep, at least 1.

        Raises:
          UnsupportedError: fsspec, or the package of the protocol, is not installed.
        """
        self._origin, self._keep = origin, keep
        self._there = source(url)
        self._files, self._root = file_system(url)

    def copy_newest(self) -> tuple[str, int] | None:
        """Copies the newest version, if the URL has none as new.

        Returns:
          The URL of the version, and the bytes that were sent; None if there is nothing to copy.

        Raises:
          DamagedFileError: A file of the source is damaged.
          NotFoundError: The version was removed meanwhile.
        """
        present = self._there.numbers()
        wanted = [number for number in self._origin.numbers() if number > max(present, default=-1)]
        if not wanted:
            return None
        manifest = self._origin.manifest(wanted[0])
        sent = self._send_tables(wanted[0], manifest, present) + self._send_others(wanted[0], manifest)
        self._files.pipe_file(self._path(wanted[0], MANIFEST), manifest.encode())
        for number in present[self._keep - 1 :]:
            self._files.rm_file(self._path(number, MANIFEST))  # first: servers see whole versions only
            self._files.rm(f"{self._root}/{number}", recursive=True)
        return f"{self._there.name}/{wanted[0]}", sent

    def _path(self, number: int, path: str) -> str:
        return f"{self._root}/{number}/{path}"

    def _send_tables(self, number: int, manifest: VersionManifest, present: list[int]) -> int:
        known: dict[tuple[str, int, int], str] = {}
        for other in present:
            for entry in self._there.manifest(other).table_files:
                known[entry.identity] = self._path(other, entry.path)
        sent = 0
        total = sum(entry.bytes for entry in manifest.table_files)
        with bar(total, f"copy version {number}") as progress:
            for entry in manifest.table_files:
                target = self._path(number, entry.path)
                same = known.get(entry.identity)
                if same is not None:
                    self._files.copy(same, target)  # in the store
                else:
                    sent += self._send(number, entry.path, target, entry.bytes)
                progress.update(entry.bytes)
        return sent

    def _send(self, number: int, path: str, target: str, expected: int) -> int:
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        with self._origin.open(number, path) as original, self._files.open(target, "wb") as copy:
            writer: Any = copy
            shutil.copyfileobj(original, writer, _PIECE)
            size = int(writer.tell())
        if size != expected:
            raise DamagedFileError(f"{self._origin.name}/{number}/{path} has {size} bytes, and should have {expected}")
        return size

    def _send_others(self, number: int, manifest: VersionManifest) -> int:
        sent = 0
        for other in manifest.others:
            data = self._origin.read_other(number, other)
            target = self._path(number, other.path)
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(target, data)
            sent += len(data)
        return sent
