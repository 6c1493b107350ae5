"""Arrays in a file, in order: a NumPy archive (`.npz`, read without pickle), and in it what each array is.

Types that NumPy does not have, as bfloat16, are stored as unsigned integers of their width.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.errors import DamagedFileError

_FACTS = "facts"


def write(path: Path, arrays: Sequence[tuple[int, npt.NDArray[Any]]], facts: Mapping[str, Any]) -> None:
    """Writes arrays.

    Args:
      path: The file.
      arrays: Each with its number, which names it.
      facts: JSON, of the whole.
    """
    members = {_FACTS: np.frombuffer(json.dumps(dict(facts)).encode(), np.uint8)}
    members |= {_name(number): _plain(array) for number, array in arrays}
    with open(path, "wb") as stream:
        np.savez(stream, **members)  # type: ignore[arg-type]


def read(path: Path) -> tuple[dict[str, Any], Iterator[tuple[int, npt.NDArray[Any]]]]:
    """What `write` wrote: the facts, and the arrays, one after another, in stored types (`typed`).

    Raises:
      DamagedFileError: The file is none of these.
    """
    with _refusing(path), np.load(path, allow_pickle=False) as archive:
        facts = json.loads(archive[_FACTS].tobytes())

    def arrays() -> Iterator[tuple[int, npt.NDArray[Any]]]:
        with _refusing(path), np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                if name != _FACTS:
                    yield int(name[1:]), archive[name]

    return facts, arrays()


def typed(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array as it was before it was stored."""
    found = np.dtype(dtype)
    return array if array.dtype == found else array.view(found)


def _name(number: int) -> str:
    return f"a{number:06d}"


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Those of ml_dtypes call themselves void, or have a kind of NumPy's and are none of its.
    if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1:
        return array
    return array.view(f"u{array.dtype.itemsize}")


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turns the errors of reading an archive into one that names the file."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, NotImplementedError) as error:
        raise DamagedFileError(f"{path} is damaged: {type(error).__name__}: {error}") from error
