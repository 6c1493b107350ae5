"""`StoredRows`: a table of a checkpoint, from the base and the increments after it. Needs no TensorFlow.

Where several nodes have saved, each has written the keys that a hash gives it: a part of the table, with a base and
increments of its own. Files of a part are read from the newest to the oldest: a row that a newer one has written or
erased is left out of the older ones. So each key comes once, and what is in memory is a block, and the keys of the
increments.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import _table
from tf_sparse_ps.checkpoints import array_file
from tf_sparse_ps.checkpoints.directory import Checked
from tf_sparse_ps.checkpoints.manifest import TablePart
from tf_sparse_ps.errors import DamagedFileError, StateError
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.scan import Block
from tf_sparse_ps.table.shards import Shard, describe

_FILTER_BITS = 24
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class StoredRows:
    """Rows of a table in a checkpoint.

    Attributes:
      info: Of the first part's newest file: dim, key_limit, optimizer, initializer, dtype, metadata, step.
      shard: Whose rows these are; None: all of the table's.
      at_most: How many rows there are, at most; exactly, if there are no increments.
    """

    def __init__(self, checkpoint: Checked, number: int, shard: Shard | None = None) -> None:
        """Reads the headers of files.

        Args:
          checkpoint: That has the table, with what it builds on.
          number: Of the table, among the checkpoint's.
          shard: Whose rows are wanted; others are left out where that leaves files out. None: all.

        Raises:
          DamagedFileError, NotFoundError: A file is not what it should be, or parts do not fit together.
          StateError: A file is of another step than its checkpoint says.
        """
        n_parts = len(checkpoint.manifest.parts(number))
        self._parts = [_Part(checkpoint, number, at) for at in range(n_parts)]
        self.info = self._parts[0].info
        for at, part in enumerate(self._parts):
            part.check_alike(self._parts[0])
            if n_parts > 1 and part.shard != (at, n_parts):
                raise DamagedFileError(
                    f"{part.file} is damaged: it has {describe(part.shard)}, and should have "
                    f"{describe(Shard(at, n_parts))}"
                )
        self.shard = self._parts[0].shard if n_parts == 1 else None
        if shard is not None and n_parts == shard.nodes:
            self._parts, self.shard = [self._parts[shard.node]], shard
        self.at_most = sum(part.at_most for part in self._parts)

    def blocks(self, slots: bool = True) -> Iterator[Block]:
        """All rows, each key once, in no order that means anything.

        Args:
          slots: With slots and metadata.

        Raises:
          DamagedFileError: A block is not what was written, and has not been returned; or, at the end of a file, the
            blocks are those of another one.
        """
        for part in self._parts:
            yield from part.blocks(slots)


class _Part:
    """What one node has written of a table, in the base and the increments."""

    def __init__(self, checkpoint: Checked, number: int, at: int) -> None:
        self._files = _files(checkpoint, number, at)
        infos = [file.open().info() for file in self._files]  # one after another: there may be very many
        self.file = self._files[-1].rows
        self.info: dict[str, Any] = infos[-1]
        self.shard = Shard.of(self.info)
        self.at_most = sum(int(one["n_rows"]) for one in infos)
        for file, info in zip(self._files, infos, strict=True):
            if info["step"] != file.step:
                raise StateError(
                    f"{file.rows} has the rows of table {file.table!r} at step {info['step']}, and the checkpoint's "
                    f"other tables and dense weights are of step {file.step}: they are not of one step"
                )
            self._must_be_like(info, file.rows, "which builds on it,")
            if Shard.of(info) != self.shard:
                raise DamagedFileError(
                    f"{file.rows} is damaged: it has {describe(Shard.of(info))}, {self.file}, which builds on it, "
                    f"{describe(self.shard)}"
                )

    def check_alike(self, first: _Part) -> None:
        """Compares with another part of the table."""
        first._must_be_like(self.info, self.file, "another part of the table,")

    def _must_be_like(self, info: Mapping[str, Any], file: Path, why: str) -> None:
        for name in ("dim", "key_limit", "optimizer", "initializer", "dtype", "metadata"):
            if info[name] != self.info[name]:
                raise DamagedFileError(
                    f"{file} is damaged: it has {name} {info[name]}, {self.file}, {why} has {self.info[name]}"
                )

    def blocks(self, slots: bool) -> Iterator[Block]:
        newer = _KeySet()
        for at in reversed(range(len(self._files))):
            own: list[Keys] = []
            reader, found_checksum = self._files[at].open(), 0
            for number in range(reader.blocks()):
                keys, rows, values, metadata = reader.read_block(number, slots)
                found_checksum = _with_block(reader, number, found_checksum)
                if at > 0:
                    own.append(keys)
                if not newer:
                    yield Block(keys, rows, tuple(values), metadata)
                    continue
                kept = ~newer.has(keys)
                yield Block(
                    keys[kept],
                    rows[kept],
                    tuple(one[kept] for one in values),
                    {name: one[kept] for name, one in metadata.items()},
                )
            self._files[at].check(found_checksum)
            if at > 0:
                newer.add([*own, self._files[at].erased_keys()])


class _File:
    """What one checkpoint has of a part of a table."""

    def __init__(self, folder: Path, step: int, table: str, part: TablePart) -> None:
        self.table, self.step = table, step
        self.rows = folder / part.file
        self._checksum = part.rows_checksum
        self._erased = None if part.erased is None else folder / part.erased

    def open(self) -> Any:
        return _table.ParameterFileReader(str(self.rows))

    def check(self, checksum: int) -> None:
        """Compares the checksum of the file's blocks' checksums with what it was."""
        if self._checksum is not None and self._checksum != f"{checksum:08x}":
            raise DamagedFileError(f"{self.rows} is damaged: it has the rows of another file")

    def erased_keys(self) -> Keys:
        if self._erased is None:
            return np.empty(0, np.int64)
        _, arrays = array_file.read(self._erased)
        for _, array in arrays:
            if array.dtype == np.int64 and array.ndim == 1:
                return array
        raise DamagedFileError(f"{self._erased} is damaged: it has no keys")


def _with_block(reader: _table.ParameterFileReader, number: int, checksum: int) -> int:
    return zlib.crc32(reader.block_checksum(number).to_bytes(4, "little"), checksum)


def _files(checkpoint: Checked, number: int, at: int) -> list[_File]:
    """The files that rows of a part are in: one with all of them, then those with changes."""
    facts = checkpoint.manifest.tables[number]
    n_parts = len(checkpoint.manifest.parts(number))
    found: list[_File] = []
    for one in reversed(checkpoint.parts):
        content = one.manifest
        numbers = [i for i, table in enumerate(content.tables) if table["id"] == facts["id"]]
        own = [number] if one is checkpoint else numbers
        if len(own) != 1 or len(content.parts(own[0])) != n_parts:
            break
        part = content.parts(own[0])[at]
        found.insert(0, _File(one.path, content.table_step, str(facts["name"]), part))
        if part.content == "all":
            return found
    raise DamagedFileError(
        f"{checkpoint.path} has changes of table {facts['name']!r}, and what it builds on has no such table"
    )


class _KeySet:
    """Keys. Those that are none of them are mostly told by a table of bits."""

    def __init__(self) -> None:
        self._sorted: Keys = np.empty(0, np.int64)
        self._maybe: npt.NDArray[np.bool_] | None = None

    def __bool__(self) -> bool:
        return len(self._sorted) > 0

    def add(self, keys: Sequence[Keys]) -> None:
        self._sorted = np.unique(np.concatenate([self._sorted, *keys]))
        if self._maybe is None and len(self._sorted):
            self._maybe = np.zeros(1 << _FILTER_BITS, np.bool_)
        for some in keys:
            if self._maybe is not None:
                self._maybe[_place(some)] = True

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        assert self._maybe is not None
        found: npt.NDArray[np.bool_] = self._maybe[_place(keys)]
        perhaps = np.flatnonzero(found)
        at = np.searchsorted(self._sorted, keys[perhaps])
        at[at == len(self._sorted)] = 0
        found[perhaps] = self._sorted[at] == keys[perhaps]
        return found


def _place(keys: Keys) -> npt.NDArray[np.int64]:
    hashed = keys.view(np.uint64) * _MULTIPLIER
    return (hashed >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)
