"""`ServingTable`: a table of a served version, for lookups with NumPy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import _table
from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError
from tf_sparse_ps.serving import version as versions
from tf_sparse_ps.serving.version import Version
from tf_sparse_ps.table.arrays import Keys, Rows, as_keys, as_rows
from tf_sparse_ps.urls import local_path

_FILES = _table.ServingFiles()  # the files that this process has mapped, which versions share


_KEYS_AT_ONCE = 1 << 16


class ServingTable:
    """A table of a served version. Any number of processes may open it; they share one copy in the page cache.

    Opening reads a few kilobytes, whatever the size of the table. The files never change, so lookups need no locks, and
    a newer version is another `ServingTable`.

    Example:
      >>> table = tsps.ServingTable.open("serve/42", "words")
      >>> table.lookup([3, 1_000_000])    # float32[2, dim]

    Attributes:
      path: The file that names the table.
      dim: The number of floats in a row.
      step: The training step whose rows the table has.
      rows: How the rows are stored: "float32", "bfloat16", "float16" or "int8".
    """

    def __init__(self, path: str, core: Any) -> None:
        """Callers use `open`."""
        self.path, self._core = path, core
        newest = self.files()[0]
        self.dim, self.rows = int(newest["dim"]), str(newest["rows"])
        self.step = int(core.step())

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        table: str | None = None,
        *,
        verify: bool | None = None,
        threads: int = 0,
    ) -> ServingTable:
        """Opens a table.

        Args:
          path: The folder of a version, of which `table` names a table; a folder of versions with numbers as names, of
            which the newest is opened; or the file of a table in `assets`.
          table: The name of the table, which is that of its layer. None: the version has one table.
          verify: Whether to read all files and check their checksums. Files that are open in this process, and were
            checked, are not checked again. None: if the environment variable TFSPS_VERIFY is "open".
          threads: The number of threads of large lookups. 0: one for each processor.

        Raises:
          NotFoundError: There is no such version or table.
          DamagedFileError: A file is not what was written.
          InvalidArgumentError: The version has several tables, and `table` names none; or the files are of different
            versions.
        """
        if verify is None:
            verify = _table.verifies_at_open()
        threads = threads or len(os.sched_getaffinity(0))

        def of_file(file: Path) -> ServingTable:
            return cls(os.fspath(file), _table.ServingTable(os.fspath(file), _FILES, verify=verify, threads=threads))

        where = Path(local_path(path))
        if where.is_file():
            return of_file(where)
        return versions.with_newest(where, lambda version: of_file(_find(version, table)))

    def __repr__(self) -> str:
        return f"<ServingTable {self.path!r}, dim {self.dim}, {self.rows} rows, step {self.step}>"

    def lookup(self, keys: npt.ArrayLike) -> Rows:
        """Returns the rows of keys.

        Args:
          keys: Integers of any shape. They may repeat.

        Returns:
          float32[*keys.shape, dim]. A key without a row has the initial value that it has in training, or zeros if the
          version was exported so.

        Raises:
          KeyRangeError: A key is outside a bounded table.
          DamagedFileError: A file is damaged.
        """
        wanted = as_keys(keys)
        rows: Rows = self._core.lookup(wanted.reshape(-1)).reshape(*wanted.shape, self.dim)
        return rows

    def contains(self, keys: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Returns whether keys, integers of any shape, have rows: bool[*keys.shape]. Raises the errors of `lookup`."""
        wanted = as_keys(keys)
        present: npt.NDArray[np.bool_] = self._core.contains(wanted.reshape(-1)).reshape(wanted.shape)
        return present

    def key_parts(self) -> Iterator[Keys]:
        """Yields the keys that have rows, in parts: int64[n] each."""
        cursor = self._core.keys()
        while len(part := cursor.next(_KEYS_AT_ONCE)):
            yield part

    def as_stored(self, rows: npt.ArrayLike) -> Rows:
        """Returns rows, float32[n, dim], as this table would store them."""
        stored: Rows = _table.coded_rows(self.rows, as_rows(rows, "rows"))
        return stored

    def files(self) -> Sequence[dict[str, Any]]:
        """Returns facts about the files of the table, the newest first; the last one is the base."""
        files: list[dict[str, Any]] = self._core.files()
        return files

    def verify(self) -> None:
        """Reads all files and checks their checksums. Raises DamagedFileError, which names the damaged bytes."""
        self._core.verify()


def _find(version: Version, table: str | None) -> Path:
    """Returns the file of a table."""
    names = [entry.name for entry in version.tables]
    if table is None and len(names) != 1:
        raise InvalidArgumentError(f"{version.path} has {len(names)} tables, {names}. Name one: open(path, table)")
    found = [entry for entry in version.tables if table in (None, entry.name)]
    if not found:
        raise NotFoundError(f"{version.path} has no table {table!r}. It has {names}")
    return version.path / versions.ASSETS / found[0].asset
