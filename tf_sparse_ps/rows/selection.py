"""`Selection`: which rows of a source are taken, and under which keys they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.errors import InvalidArgumentError, KeyRangeError
from tf_sparse_ps.keys import fingerprint
from tf_sparse_ps.table.arrays import Keys, as_keys, checksum
from tf_sparse_ps.table.scan import Block

# The keys of a source and those of the target: a dict, or two arrays.
KeyMapping = Mapping[Any, Any] | tuple[npt.ArrayLike, npt.ArrayLike]


class Selection:
    """The rows that are taken: all of them, those of some keys, or those of a range of keys.

    Attributes:
      old: The keys that are taken, int64[n] in ascending order. With a mapping, a key may occur several times. None:
        all keys in the range.
      new: The keys under which the rows of `old` are written, int64[n].
    """

    def __init__(
        self,
        keys: npt.ArrayLike | None = None,
        mapping: KeyMapping | None = None,
        key_range: tuple[int, int] | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
          keys: The keys that are taken, integers or strings. None: all, or those of `mapping`.
          mapping: The keys under which rows are written: a dict from a key of the source to one of the target, or two
            arrays. Rows of other keys are not taken.
          key_range: The first key that is taken, and the first one after these that is not.

        Raises:
          InvalidArgumentError: An argument is none of these, or two rows would get one key.
        """
        self.old: Keys | None = None
        self.new: Keys | None = None
        self._first, self._last = _range(key_range)
        if keys is not None:
            self.old = np.unique(keys_of(keys, "keys"))
        if mapping is not None:
            old, new = _pair(mapping)
            if self.old is not None:
                kept = np.isin(old, self.old)
                old, new = old[kept], new[kept]
            order = np.argsort(old, kind="stable")
            self.old, self.new = old[order], new[order]
            _check_unique(self.new)
        elif self.old is not None:
            self.new = self.old
        if self.old is not None and self.new is not None and key_range is not None:
            kept = (self.old >= self._first) & (self.old <= self._last)
            self.old, self.new = self.old[kept], self.new[kept]
        self._has_range = key_range is not None and self.old is None

    @property
    def everything(self) -> bool:
        """Whether all rows are taken, under their keys."""
        return self.old is None and not self._has_range

    def of(self, block: Block) -> Block:
        """Returns the rows of a block that are taken, with their new keys."""
        if self._has_range:
            return block.where((block.keys >= self._first) & (block.keys <= self._last))
        if self.old is None or self.new is None:
            return block
        first, end = np.searchsorted(self.old, block.keys, "left"), np.searchsorted(self.old, block.keys, "right")
        counts = end - first
        rows = np.repeat(np.arange(len(counts)), counts)
        # The place of each taken row in `old`: `first`, and the next ones for a key that occurs several times.
        places = first[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        slots = tuple(slot[rows] for slot in block.slots)
        return Block(self.new[places], block.rows[rows], slots, {n: p[rows] for n, p in block.metadata.items()})

    def check_target(self, target: str, limit: int | None) -> None:
        """Raises KeyRangeError if a row would be written under a key that the target cannot have."""
        if self.new is not None:
            check_range(self.new, target, limit)

    def describe(self) -> dict[str, str]:
        """Describes the selection for comparison between ranks."""
        if self.old is None or self.new is None:
            return {"keys": f"{self._first} to {self._last}" if self._has_range else "all"}
        return {"keys": f"{len(self.old)} keys, checksums {checksum(self.old)} and {checksum(self.new)}"}


def check_range(keys: Keys, target: str, limit: int | None) -> None:
    """Raises KeyRangeError if a key, of int64[n], is outside a bounded target. `limit`: None for an unbounded one."""
    if limit is None or not len(keys):
        return
    for key in (int(keys.min()), int(keys.max())):
        if not 0 <= key < limit:
            raise KeyRangeError(
                f"{target} has keys from 0 to {limit - 1}, and a row would get key {key}. Select rows with keys=, or "
                "give them other keys with mapping="
            )


def check_finite(block: Block, name: str) -> None:
    """Raises InvalidArgumentError if a row or slot is infinite or no number. `name`: the source, for the message."""
    for values in (block.rows, *block.slots):
        is_finite = np.isfinite(values).all(axis=1)
        if not is_finite.all():
            first = int(np.argmin(is_finite))
            value = values[first][~np.isfinite(values[first])][0]
            raise InvalidArgumentError(
                f"{name} has {value} in the row of key {block.keys[first]}. A table with such a row could not be "
                "trained. Give the row finite numbers, or leave it out"
            )


def keys_of(values: Any, name: str) -> Keys:
    """Converts integers, or strings to their fingerprints: int64[n].

    Args:
      values: Integers or strings of any shape.
      name: The argument, for messages.

    Raises:
      InvalidArgumentError: The values are neither.
    """
    array = np.asarray(values)
    if array.dtype.kind in "SUO" and array.size:
        try:
            return fingerprint(values).reshape(-1)
        except TypeError as error:
            raise InvalidArgumentError(f"`{name}` must be integers or strings: {error}") from None
    if array.size == 0:
        return np.empty(0, np.int64)
    try:
        return as_keys(array).reshape(-1)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"`{name}`: {error}") from None


def _pair(mapping: KeyMapping) -> tuple[Keys, Keys]:
    if isinstance(mapping, Mapping):
        pair = keys_of(list(mapping), "mapping"), keys_of(list(mapping.values()), "mapping")
    elif isinstance(mapping, tuple | list) and len(mapping) == 2:
        pair = keys_of(mapping[0], "mapping"), keys_of(mapping[1], "mapping")
    else:
        raise InvalidArgumentError(
            "`mapping` must be a dict from old to new keys, or a pair of arrays, the old and the new keys. Received: "
            f"{type(mapping).__name__}"
        )
    if len(pair[0]) != len(pair[1]):
        raise InvalidArgumentError(
            f"`mapping` must have as many old as new keys. Received: {len(pair[0])} and {len(pair[1])}"
        )
    return pair


def _check_unique(new: Keys) -> None:
    values, counts = np.unique(new, return_counts=True)
    if (counts > 1).any():
        raise InvalidArgumentError(
            f"`mapping` gives key {values[counts > 1][0]} to several rows. Each new key must occur once"
        )


def _range(key_range: tuple[int, int] | None) -> tuple[int, int]:
    """Returns the first and the last key."""
    if key_range is None:
        return -(2**63), 2**63 - 1
    first, end = (int(key) for key in key_range)
    if not -(2**63) <= first < end <= 2**63:
        raise InvalidArgumentError(
            f"`key_range` must be (first, end), with -2^63 <= first < end <= 2^63. Received: {key_range}"
        )
    return first, end - 1
