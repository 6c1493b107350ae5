"""Directories of versions that `follow` reads: a path, or a URL of fsspec (s3, gs, hdfs, memory, ...)."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tf_sparse_ps.errors import DamagedFileError, NotFoundError, TableError, UnsupportedError
from tf_sparse_ps.serving.version import MANIFEST, OtherFile, VersionManifest, complete, number_of, other_file
from tf_sparse_ps.urls import file_system, is_url


class Source(abc.ABC):
    """A directory of versions.

    Attributes:
      name: The path or URL.
    """

    name: str

    @abc.abstractmethod
    def numbers(self) -> list[int]:
        """Returns the numbers of the versions that are complete, the newest first."""

    @abc.abstractmethod
    def open(self, number: int, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Opens a file of a version for reading. It can seek."""

    def manifest(self, number: int) -> VersionManifest:
        """Reads the manifest of a version. Raises the errors of `VersionManifest.decode`."""
        with self.open(number, MANIFEST) as stream:
            return VersionManifest.decode(stream.read(), f"{self.name}/{number}/{MANIFEST}")

    def read_other(self, number: int, other: OtherFile) -> bytes:
        """Reads a file of the SavedModel. Raises DamagedFileError if it is not the one that the manifest lists."""
        with self.open(number, other.path) as stream:
            data = stream.read()
        if other_file(other.path, data) != other:
            raise DamagedFileError(f"{self.name}/{number}/{other.path} is damaged: it has another checksum")
        return data


def source(name: str | os.PathLike[str]) -> Source:
    """Returns a source.

    Args:
      name: A path, or a URL.

    Raises:
      UnsupportedError: It is a URL, and fsspec or the package of its protocol is not installed.
    """
    text = os.fspath(name)
    return _Remote(text) if is_url(text) else _Local(Path(text))


class _Local(Source):
    """A directory of a mounted file system."""

    def __init__(self, directory: Path) -> None:
        self.name, self._directory = os.fspath(directory), directory

    def numbers(self) -> list[int]:
        if not self._directory.is_dir():
            raise NotFoundError(f"{self._directory} is no directory with versions")
        return [number for number, _ in complete(self._directory)]

    def open(self, number: int, path: str) -> IO[bytes]:
        try:
            return open(self._directory / str(number) / path, "rb")
        except FileNotFoundError:
            raise NotFoundError(f"{self._directory}/{number} has no {path}: it has been removed") from None


class _Remote(Source):
    """A directory behind a URL."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._files, self._root = file_system(url)

    def numbers(self) -> list[int]:
        return sorted((n for n in self._all() if self._files.exists(f"{self._root}/{n}/{MANIFEST}")), reverse=True)

    def _all(self) -> Iterator[int]:
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return
        for entry in entries:
            number = number_of(str(entry).rstrip("/").rpartition("/")[2])
            if number is not None:
                yield number

    @contextlib.contextmanager
    def open(self, number: int, path: str) -> Iterator[IO[bytes]]:
        try:
            with self._files.open(f"{self._root}/{number}/{path}", "rb") as stream:
                yield stream
        except FileNotFoundError:
            raise NotFoundError(f"{self.name}/{number} has no {path}: it has been removed") from None
        except TableError:
            raise
        except ValueError as error:  # fsspec's, for example of an HTTP server that sends whole files only
            raise UnsupportedError(f"{self.name}/{number}/{path} cannot be read in parts: {error}") from error
