"""`Store`: the objects behind the URL of a directory of checkpoints, with retries and bounded memory.

A store has no rename and no lock. An object appears whole, by one put.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from tf_sparse_ps.checkpoints import fault_points
from tf_sparse_ps.errors import NotFoundError, UnsupportedError
from tf_sparse_ps.urls import file_system

Listing = dict[str, dict[str, int]]  # the bytes of files, by folder and name; "" is the directory itself

_PIECE = 4 << 20  # bytes that are read or written at once
_BLOCK = 16 << 20  # bytes of a part of an upload
_MOST_PARTS = 9_000  # of an object; S3 allows 10,000
_READ_AHEAD = 8 << 20
PAUSES_S = (0.5, 2.0, 8.0)  # before each further try
_WITHOUT_FOLDERS = ("s3", "s3a", "gs", "gcs")  # protocols whose `makedirs` would make a bucket, at most
_READ_ONLY = ("http", "https", "data", "git", "github")
_T = TypeVar("_T")


def _nothing() -> None:
    """Does nothing."""


def _abandon(target: Any) -> None:
    """Closes a file of fsspec that was not written to its end. Where the store allows that, it does not appear."""
    with contextlib.suppress(Exception):  # local files cannot be discarded
        target.discard()
    with contextlib.suppress(Exception):
        if hasattr(target, "forced"):  # an `AbstractBufferedFile`, whose `close` would send the rest
            target.closed = True
        else:
            target.close()


def _local(file: Path) -> IO[bytes]:
    """Opens a file of this machine to write to. If its folder is missing, the error is not that of a missing object."""
    try:
        return open(file, "wb")
    except FileNotFoundError as error:
        raise OSError(f"{file} cannot be written: {error}") from None


class Store:
    """The objects behind a URL. Any thread may use it.

    Attributes:
      url: The URL, without a slash at its end.
    """

    def __init__(self, url: str) -> None:
        """Opens the URL and lists it, so that mistakes are found now.

        Raises:
          UnsupportedError: The URL cannot be opened, is a chain of URLs, or its file system cannot remove files.
          OSError: It cannot be listed: it is unreachable, or there are no credentials.
        """
        self.url = url.rstrip("/")
        if "::" in url:
            raise UnsupportedError(f"{url} is a chain of URLs. Checkpoints need one URL, such as s3://bucket/run1")
        if not url.partition("://")[2].strip("/"):
            raise UnsupportedError(f"{url} names no directory. Add one, as in s3://bucket/run1")
        if set("*?[") & set(url):  # fsspec would remove what a pattern matches
            raise UnsupportedError(f"{url} has one of *, ? and [, which fsspec reads as a pattern. Choose another name")
        if (protocol := url.partition("://")[0]) in _READ_ONLY:
            raise UnsupportedError(
                f"{url} cannot hold checkpoints: fsspec does not write and remove files by {protocol}. Use a store "
                "that can be written, such as s3, gs or abfs, or a path"
            )
        self._files, self._root = file_system(self.url)
        protocols = self._files.protocol
        self._has_folders = not {protocols, *(protocols if isinstance(protocols, tuple) else ())} & {*_WITHOUT_FOLDERS}
        self._try("list", "", self._list, pauses=())

    # --- what is there ---

    def list(self) -> Listing:
        """Returns all files of the directory and of its folders, with their bytes."""
        return self._try("list", "", self._list)

    def _list(self) -> Listing:
        # fsspec's `find` leaves out folders that could not be listed: checkpoints would seem to lack files.
        self._files.invalidate_cache()
        files, folders = self._list_folder("")
        listing: Listing = {"": files} if files else {}
        for folder in sorted(folders):
            files, _ = self._list_folder(folder)
            if files:
                listing[folder] = files
        return listing

    def _list_folder(self, folder: str) -> tuple[dict[str, int], set[str]]:
        """Returns the files of a folder, with their bytes, and its folders. A missing folder has none."""
        root = self._at(folder).strip("/")
        try:
            entries = self._files.ls(self._at(folder), detail=True)
        except FileNotFoundError:
            return {}, set()
        files: dict[str, int] = {}
        folders: set[str] = set()
        for facts in entries:
            path = str(facts["name"]).strip("/")
            if path == root:  # an object that stands for the folder itself
                continue
            name = path.rpartition("/")[2]
            if facts["type"] == "directory":
                folders.add(name)
            else:
                files[name] = int(facts["size"] or 0)
        return files, folders

    def size(self, path: str) -> int | None:
        """Returns the bytes of a file, or None if it is not there."""
        return self._try("look at", path, lambda: self._size(path))

    def _size(self, path: str) -> int | None:
        self._files.invalidate_cache()
        try:
            return int(self._files.info(self._at(path))["size"])
        except FileNotFoundError:
            return None

    # --- small files ---

    def read(self, path: str) -> bytes:
        """Reads a small file.

        Raises:
          NotFoundError: It is not there.
          OSError: The store has failed.
        """
        try:
            return self._try("read", path, lambda: bytes(self._files.cat_file(self._at(path))))
        except FileNotFoundError:
            raise NotFoundError(f"{self.url}/{path} is missing") from None

    def put(self, path: str, data: bytes) -> None:
        """Writes a small file by one put."""

        def put() -> None:
            self._make_folder(path)
            self._files.pipe_file(self._at(path), data)

        self._try("write", path, put)

    # --- files ---

    def send(
        self,
        file: Path,
        path: str,
        may_continue: Callable[[], None] = _nothing,
        may_end: Callable[[], None] = _nothing,
    ) -> None:
        """Copies a file of this machine to the store, piece by piece.

        Args:
          file: The file.
          path: Where to.
          may_continue: Called before each piece. An error that it raises ends the upload.
          may_end: Called before the file appears in the store, likewise.

        Raises:
          OSError: The store has failed again and again, or has another number of bytes in the end.
        """
        size = os.path.getsize(file)

        stops: list[BaseException] = []

        def ask(may: Callable[[], None]) -> None:
            try:
                may()
            except BaseException as error:
                stops.append(error)
                raise

        def send() -> None:
            ask(may_continue)
            self._make_folder(path)
            block = max(_BLOCK, -(-size // _MOST_PARTS))
            with open(file, "rb") as source:
                target = self._files.open(self._at(path), "wb", block_size=block)
                try:
                    while piece := source.read(_PIECE):
                        ask(may_continue)
                        target.write(piece)
                        fault_points.reach("piece_sent")
                    ask(may_end)
                except BaseException:
                    _abandon(target)
                    raise
                target.close()
            if (there := self._size(path)) != size:
                raise OSError(f"it has {there} bytes there, and {size} here")

        self._try("write", path, send, stops=stops)

    def fetch(self, path: str, file: Path | None, progress: Callable[[int], None] | None = None) -> str:
        """Reads a file of the store, piece by piece.

        Args:
          path: The file in the store.
          file: Where to copy it. None: it is only read.
          progress: Called with the bytes of each piece.

        Returns:
          The CRC-32 of its bytes: 8 hexadecimal digits.

        Raises:
          NotFoundError: It is not there.
          OSError: The store, or the disk of this machine, has failed.
        """

        def fetch() -> str:
            crc = 0
            with contextlib.ExitStack() as stack:
                source = stack.enter_context(self._files.open(self._at(path), "rb", block_size=_READ_AHEAD))
                target = None if file is None else stack.enter_context(_local(file))
                while piece := source.read(_PIECE):
                    crc = zlib.crc32(piece, crc)
                    if target is not None:
                        target.write(piece)
                    if progress is not None:
                        progress(len(piece))
            fault_points.reach(fault_points.FILE_FETCHED)
            return f"{crc:08x}"

        try:
            return self._try("read", path, fetch)
        except FileNotFoundError:
            raise NotFoundError(f"{self.url}/{path} is missing") from None

    # --- removal ---

    def remove(self, path: str) -> None:
        """Removes a file, if it is there."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._at(path))

        self._try("remove", path, remove)

    def remove_folder(self, name: str) -> None:
        """Removes a folder with its files, if it is there."""

        def remove() -> None:
            self._files.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                self._files.rm(self._at(name), recursive=True)

        self._try("remove", name, remove)

    # --- common ---

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _make_folder(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if self._has_folders:  # another machine may have removed it meanwhile
            self._files.makedirs(self._at(folder), exist_ok=True)

    def _try(
        self,
        verb: str,
        path: str,
        action: Callable[[], _T],
        *,
        pauses: tuple[float, ...] | None = None,
        stops: Sequence[BaseException] = (),
    ) -> _T:
        """Does something, again after a pause if it fails. Errors of all kinds of stores become an OSError.

        Args:
          verb: One of `_PARTICIPLES`.
          path: The file or folder, for the message.
          action: Does it.
          pauses: The seconds before each further try. None: `PAUSES_S`.
          stops: Errors of the caller. They end the tries, and are raised as they are.

        Raises:
          FileNotFoundError: A file that is read is not there.
          OSError: All tries have failed. The message names the URL.
        """
        left = list(PAUSES_S if pauses is None else pauses)
        while True:
            try:
                return action()
            except Exception as error:
                if any(error is stop for stop in stops) or (verb == "read" and isinstance(error, FileNotFoundError)):
                    raise
                if isinstance(error, _FINAL) or not left or not threading.main_thread().is_alive():
                    shown = f"{self.url}/{path}" if path else self.url
                    # Without a number: those of damaged disks would say that a checkpoint is damaged.
                    raise OSError(f"{shown} cannot be {_PARTICIPLES[verb]}: {type(error).__name__}: {error}") from error
            time.sleep(left.pop(0))


_FINAL = (FileNotFoundError, PermissionError, MemoryError, NotImplementedError)  # another try would not help
_PARTICIPLES = {
    "list": "listed",
    "look at": "looked at",
    "read": "read",
    "write": "written",
    "remove": "removed",
}
