"""The formats of files of rows, by the ending of the file's name."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.folders import sync_file, sync_folder
from tf_sparse_ps.rows import csv_files, npz_files, parquet_files
from tf_sparse_ps.rows.facts import RowFacts
from tf_sparse_ps.rows.row_files import Format, Reader, Writer
from tf_sparse_ps.table.path_claim import claimed

ENDINGS: dict[str, Format] = {
    ".csv": csv_files.Csv(),
    ".npz": npz_files.Npz(),
    ".parquet": parquet_files.Parquet(),
}


def reader(path: Path) -> Reader:
    """Opens a file of rows.

    Raises:
      InvalidArgumentError: The ending is not that of a format; or the file is not a file of rows.
      DamagedFileError, UnsupportedError: The file is damaged or of a later version, or its format needs a package that
        is not installed.
    """
    return _format_of(path).reader(path)


@contextlib.contextmanager
def writing(path: Path, facts: RowFacts) -> Iterator[Writer]:
    """Surrounds the writing of a file, which appears completely or not at all and replaces one of its name.

    Raises:
      InvalidArgumentError: The ending is not that of a format, or the folder does not exist.
      WriterLockedError: Another process or thread is writing this file.
    """
    file_format = _format_of(path)
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"{path.parent} is not a folder, so {path.name} cannot be written there")
    with claimed(os.fspath(path), "an export of rows"):
        partial = path.parent / f".{path.name}.{secrets.token_hex(4)}.partial"
        try:
            with contextlib.closing(file_format.writer(partial, facts)) as writer:
                yield writer
                writer.finish()
            sync_file(partial)
            os.rename(partial, path)
            sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def _format_of(path: Path) -> Format:
    file_format = ENDINGS.get(path.suffix.lower())
    if file_format is None:
        raise InvalidArgumentError(f"a file of rows must end with one of {sorted(ENDINGS)}. Received: {path}")
    return file_format
