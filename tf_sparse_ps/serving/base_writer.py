"""`BaseWriter`: writes new bases of tables in a thread, while versions appear without waiting for them."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError
from pathlib import Path

from tf_sparse_ps.errors import WriterLockedError
from tf_sparse_ps.folders import Trust, remove_folder
from tf_sparse_ps.serving import fault_points, layer_plan, table_files
from tf_sparse_ps.serving.version import FileEntry, TableEntry, Version
from tf_sparse_ps.serving.version_builder import SUFFIX, Bases, link
from tf_sparse_ps.table.path_claim import claimed

_FOLDER = ".bases-"
_NICENESS = 8  # of threads that write: they get a seventh of a core that training uses


def lower_priority() -> None:
    """Lets this thread run after those that train."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class BaseWriter:
    """Merges the files of tables to new bases in a thread, and offers them to later versions.

    Not thread-safe: one thread at a time calls it.
    """

    def __init__(self, directory: Path) -> None:
        """Writes nothing yet. `directory`: the directory of versions."""
        self._directory = directory
        self._thread: threading.Thread | None = None
        self._work = _Work(directory, {})
        self._within = contextlib.ExitStack()  # the claim of the folder, and the folder
        self._finalizer = weakref.finalize(self, self._within.close)  # also when the interpreter ends

    @property
    def is_writing(self) -> bool:
        """Whether bases are being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, version: Version) -> None:
        """Begins to write a base for each table of a version whose layers have grown too much.

        Does nothing if no table needs one, or if bases are being written.
        """
        files = {
            table.asset: table.files
            for table in version.tables
            if layer_plan.needs_base([file.bytes for file in table.files])
        }
        if not files or self.is_writing:
            return
        self.close()
        self._remove_left()
        folder = self._directory / f"{_FOLDER}{secrets.token_hex(4)}"
        self._within.enter_context(claimed(os.fspath(folder), "a base of served tables"))
        self._within.callback(_remove, folder)
        self._work = _Work(folder, files)
        try:
            self._work.link(version)  # so that they stay if the version is removed
        except OSError as error:
            self._work.error = error
            return
        # The thread has no reference to this object, so that the object ends when nobody uses it.
        self._thread = threading.Thread(target=self._work.run, name="tsps-base")
        self._within.callback(_stop, self._work, self._thread)
        self._thread.start()

    def bases(self, table: TableEntry) -> Bases:
        """Returns the base that takes the place of files of a table, or the number of files that wait for one.

        Waits for the base if the table can have no further layer before it is there.
        """
        replaced = self._work.files.get(table.asset, ())
        if not replaced or [file.identity for file in table.files[-len(replaced) :]] != [
            file.identity for file in replaced
        ]:
            return Bases()
        if not layer_plan.allows_layer([file.bytes for file in table.files], len(replaced)):
            self.wait()
        new = self._work.written.get(table.asset)
        if new is None and not self.is_writing:  # it has failed
            return Bases()
        return Bases(new, len(replaced))

    def wait(self) -> None:
        """Waits until the bases are there, or have failed."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Ends the writing, and removes bases that no version has taken. Warns if they could not be written."""
        self._within.close()
        self._thread = None
        error = self._work.error
        self._work = _Work(self._directory, {})
        if error is not None:
            warnings.warn(
                f"new bases of the tables in {self._directory} were not written: {type(error).__name__}: {error}. "
                "Their versions keep more layers until the next attempt",
                stacklevel=3,
            )

    def _remove_left(self) -> None:
        """Removes what killed processes have left."""
        for name in os.listdir(self._directory):
            if name.startswith(_FOLDER):
                path = self._directory / name
                with contextlib.suppress(WriterLockedError), claimed(os.fspath(path), "cleaning"):
                    _remove(path)


class _Work:
    """The bases that a thread writes.

    Attributes:
      files: The files that are merged, for each table by its asset.
      written: The bases that are ready, by asset.
      error: The error that has ended the writing, or None.
    """

    def __init__(self, folder: Path, files: dict[str, tuple[FileEntry, ...]]) -> None:
        self._folder, self.files = folder, files
        self._stopped = threading.Event()
        self.written: dict[str, Path] = {}
        self.error: Exception | None = None

    def link(self, version: Version) -> None:
        """Links the files of the version."""
        for asset, files in self.files.items():
            os.makedirs(self._folder / asset)
            for file, path in zip(files, self._linked(asset), strict=True):
                link(version.path / file.path, path)

    def _linked(self, asset: str) -> list[Path]:
        return [self._folder / asset / Path(file.path).name for file in self.files[asset]]

    def run(self) -> None:
        """Writes the bases."""
        lower_priority()
        try:
            for asset in self.files:
                self._write(asset, self._linked(asset))
        except CancelledError:
            pass
        except Exception as error:
            self.error = error

    def _write(self, asset: str, merged: Sequence[Path]) -> None:
        path = self._folder / asset / f"base-{secrets.token_hex(4)}{SUFFIX}"
        table_files.merge([os.fspath(file) for file in merged], [], path, may_continue=self._check)
        for file in merged:
            os.unlink(file)
        fault_points.reach("base_ready")
        self.written[asset] = path

    def stop(self) -> None:
        """Makes `run` end soon."""
        self._stopped.set()

    def _check(self) -> None:
        if self._stopped.is_set() or not threading.main_thread().is_alive():
            raise CancelledError


def _stop(work: _Work, thread: threading.Thread) -> None:
    work.stop()
    thread.join()


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the next process tries again
        if os.path.lexists(folder):
            remove_folder(folder, Trust.GROUP)
