"""Numbered arrays and facts about them in a file: a NumPy archive (`.npz`), which is read without pickle.

Types that NumPy does not have, such as bfloat16, are stored as unsigned integers of their width.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from tf_sparse_ps.errors import DamagedFileError
from tf_sparse_ps.folders import read_regular

_FACTS, _ENDING = "facts", ".npy"
_MEMBER = re.compile(r"facts\.npy|a\d{6,9}\.npy")
_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def write(path: Path, arrays: Sequence[tuple[int, npt.NDArray[Any]]], facts: Mapping[str, Any]) -> None:
    """Writes arrays.

    Args:
      path: The file.
      arrays: The arrays, each with its number.
      facts: JSON about the arrays.
    """
    members = {_FACTS: np.frombuffer(json.dumps(dict(facts)).encode(), np.uint8)}
    members |= {_name(number): _plain(array) for number, array in arrays}
    with open(path, "wb") as stream:
        np.savez(stream, **members)  # type: ignore[arg-type]


def read(path: Path) -> tuple[dict[str, Any], Iterator[tuple[int, npt.NDArray[Any]]]]:
    """Reads what `write` wrote.

    Nothing in the file is trusted before it has been checked: a crafted file is refused as a damaged one is.

    Returns:
      The facts; and an iterator of the arrays with their numbers, in their stored types (see `typed`).

    Raises:
      DamagedFileError: The file is not what `write` wrote.
    """
    with _opened(path) as archive:
        facts = json.loads(_array(archive, _FACTS + _ENDING).tobytes())
        if not isinstance(facts, dict):
            raise DamagedFileError(f"{path} is damaged: its facts are {type(facts).__name__}, not a dictionary")

    def arrays() -> Iterator[tuple[int, npt.NDArray[Any]]]:
        with _opened(path) as archive:
            for name in archive.namelist():
                if name != _FACTS + _ENDING:
                    yield int(name[1 : -len(_ENDING)]), _array(archive, name)

    return facts, arrays()


def typed(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns a stored array as one of its original type."""
    return array if array.dtype == np.dtype(dtype) else array.view(dtype)


def _name(number: int) -> str:
    return f"a{number:06d}"


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Types of ml_dtypes call themselves void, or have one of NumPy's kinds without being NumPy's.
    if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1:
        return array
    return array.view(f"u{array.dtype.itemsize}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Opens an archive. Any error in reading it becomes a DamagedFileError, except for those of the file system.

    Raises:
      DamagedFileError: The file is not what `write` wrote.
    """
    try:
        with read_regular(path, error=DamagedFileError) as file, zipfile.ZipFile(file) as archive:
            _check_members(archive, os.fstat(file.fileno()).st_size)
            yield archive
    except OSError:
        raise
    except Exception as error:  # parsers of crafted bytes raise about anything
        raise DamagedFileError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
    names = archive.namelist()
    if len(set(names)) < len(names) or not all(map(_MEMBER.fullmatch, names)):
        raise ValueError("its members are not those of a checkpoint")
    if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
        raise ValueError("a member is compressed")
    if sum(member.file_size for member in archive.infolist()) > size:
        raise ValueError("its members have more bytes than the file")


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """Reads a member: an array in NumPy's format, without objects."""
    with archive.open(name) as stream:
        version = npy_format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"{name} has version {version} of NumPy's format")
        shape, fortran, dtype = _HEADERS[version](stream)
        if dtype.hasobject or any(length < 0 for length in shape):
            raise ValueError(f"{name} has shape {shape} and type {dtype}")
        data = stream.read()
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} has {len(data)} bytes for shape {shape} of {dtype}")
    flat = np.frombuffer(bytearray(data), dtype)  # a copy that can be written
    return flat.reshape(shape, order="F" if fortran else "C")
