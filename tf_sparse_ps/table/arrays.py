"""Converts a caller's arrays to keys, rows and counts, without losing a bit of a key."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.errors import InvalidArgumentError

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

_CHUNK_BYTES = 4 << 20


def as_keys(keys: npt.ArrayLike) -> Keys:
    """Returns keys of any shape as int64, and never truncates one.

    Raises:
      InvalidArgumentError: The keys are not integers, or an unsigned key is greater than 2**63 - 1.
    """
    return np.ascontiguousarray(integers(keys, "keys"), dtype=np.int64)


def checksum(array: npt.NDArray[Any]) -> str:
    """Returns a checksum of an array's content, eight hexadecimal digits. A contiguous array is not copied."""
    return f"{zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data):08x}"


def as_counts(counts: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Returns numbers of ranks, of any shape, as int32.

    Raises:
      InvalidArgumentError: The counts are not integers, or one is not from 1 to 2**31 - 1.
    """
    array = integers(counts, "counts")
    bad = array[(array < 1) | (array > np.iinfo(np.int32).max)]
    if bad.size:
        raise InvalidArgumentError(f"counts must be numbers of ranks, 1 to 2**31 - 1. Received: {bad[0]}")
    return np.ascontiguousarray(array, dtype=np.int32)


def integers(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Returns an array of an integer type.

    Args:
      values: The integers, of any shape.
      name: The name of the values in messages, a plural.

    Raises:
      InvalidArgumentError: The values are not integers, or an unsigned one is greater than 2**63 - 1.
    """
    array = np.asarray(values)
    if array.size == 0 and not isinstance(values, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{name} must be integers. Received: {array.dtype}")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise InvalidArgumentError(f"{name} must be at most 2**63 - 1. Received: {array.max()}")
    return array


def as_rows(values: npt.ArrayLike, name: str) -> Rows:
    """Returns floats of any shape as float32.

    Raises:
      InvalidArgumentError: The values are not floats.
    """
    array = np.asarray(values)
    if array.dtype.kind != "f":
        raise InvalidArgumentError(f"{name} must be floats. Received: {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.float32)


def block_rows(dim: int) -> int:
    """Returns the number of rows of `dim` floats that take about 4 MiB."""
    return max(1, _CHUNK_BYTES // (4 * dim))


def chunks(n: int, dim: int) -> Iterator[slice]:
    """Cuts n rows of `dim` floats into parts of about 4 MiB."""
    size = block_rows(dim)
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))
