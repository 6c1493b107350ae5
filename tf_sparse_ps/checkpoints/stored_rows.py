"""`StoredRows`: a table of a checkpoint, from the base and the increments after it. Needs no TensorFlow.

If several nodes have saved a table, each has written the keys that a hash assigns to it: a part of the table, with a
base and increments of its own. The files of a part are read from the newest to the oldest. A row that a newer file has
written or erased is left out of the older ones, so each key comes once. One block and the keys of the increments are
in memory at a time.
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
from tf_sparse_ps.checkpoints.manifest import TablePart
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.errors import DamagedFileError, StateError
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.scan import Block
from tf_sparse_ps.table.shards import Shard, describe

_FILTER_BITS = 24
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class StoredRows:
    """The rows of a table in a checkpoint.

    Attributes:
      info: The header of the first part's newest file: dim, key_limit, optimizer, initializer, dtype, metadata, step.
      shard: The shard whose rows these are; None: all rows of the table.
      at_most: The number of rows, at most; exactly, if there are no increments.
    """

    def __init__(self, checkpoint: StoredCheckpoint, number: int, shard: Shard | None = None) -> None:
        """Reads the headers of files.

        Args:
          checkpoint: The checkpoint that has the table, with what it builds on.
          number: The table's place among the checkpoint's tables.
          shard: The shard whose rows are wanted. Files without any of its rows are left out. None: all rows.

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
        """Yields all rows, each key once, in an arbitrary order.

        Args:
          slots: Also read slots and metadata.

        Raises:
          DamagedFileError: A block is not what was written. It has not been yielded. Or, at the end of a file, its
            blocks are those of another file.
        """
        for part in self._parts:
            yield from part.blocks(slots)


class _Part:
    """The rows of a table that one node has written, in the base and the increments."""

    def __init__(self, checkpoint: StoredCheckpoint, number: int, at: int) -> None:
        self._files = _files(checkpoint, number, at)
        infos = [file.open().info() for file in self._files]  # one after another: there may be very many
        self.file = self._files[-1].rows
        self.info: dict[str, Any] = infos[-1]
        self.shard = Shard.of(self.info)
        self.at_most = sum(int(info["n_rows"]) for info in infos)
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
        """Compares the header with that of another part of the table."""
        first._must_be_like(self.info, self.file, "another part of the table,")

    def _must_be_like(self, info: Mapping[str, Any], file: Path, why: str) -> None:
        for name in ("dim", "key_limit", "optimizer", "initializer", "dtype", "metadata"):
            if info[name] != self.info[name]:
                raise DamagedFileError(
                    f"{file} is damaged: it has {name} {info[name]}, {self.file}, {why} has {self.info[name]}"
                )

    def blocks(self, slots: bool) -> Iterator[Block]:
        newer = KeySet()
        for at in reversed(range(len(self._files))):
            written: list[Keys] = []
            reader, file_checksum = self._files[at].open(), 0
            for number in range(reader.blocks()):
                keys, rows, values, metadata = reader.read_block(number, slots)
                file_checksum = zlib.crc32(reader.block_checksum(number).to_bytes(4, "little"), file_checksum)
                if at > 0:
                    written.append(keys)
                block = Block(keys, rows, tuple(values), metadata)
                yield block.where(~newer.has(keys)) if newer else block
            self._files[at].check(file_checksum)
            if at > 0:
                newer.add([*written, self._files[at].erased_keys()])


class _File:
    """The rows of a part of a table that one checkpoint holds."""

    def __init__(self, folder: Path, step: int, table: str, part: TablePart) -> None:
        self.table, self.step = table, step
        self.rows = folder / part.file
        self._checksum = part.rows_checksum
        self._erased = None if part.erased is None else folder / part.erased

    def open(self) -> Any:
        return _table.ParameterFileReader(str(self.rows))

    def check(self, checksum: int) -> None:
        """Compares the checksum of the blocks' checksums with the one in the manifest."""
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


def _files(checkpoint: StoredCheckpoint, number: int, at: int) -> list[_File]:
    """Returns the files of a part: one with all rows, then those with changes."""
    facts = checkpoint.manifest.tables[number]
    n_parts = len(checkpoint.manifest.parts(number))
    files: list[_File] = []
    for stored in reversed(checkpoint.parts):
        content = stored.manifest
        numbers = [i for i, table in enumerate(content.tables) if table["id"] == facts["id"]]
        if stored is checkpoint:
            numbers = [number]
        if len(numbers) != 1 or len(content.parts(numbers[0])) != n_parts:
            break
        part = content.parts(numbers[0])[at]
        files.insert(0, _File(stored.path, content.table_step, str(facts["name"]), part))
        if part.content == "all":
            return files
    raise DamagedFileError(
        f"{checkpoint.path} has changes of table {facts['name']!r}, and what it builds on has no such table"
    )


class KeySet:
    """A set of keys. A bit table rejects most keys that are not in it."""

    def __init__(self) -> None:
        self._sorted: Keys = np.empty(0, np.int64)
        self._maybe: npt.NDArray[np.bool_] | None = None

    def __bool__(self) -> bool:
        return len(self._sorted) > 0

    def add(self, keys: Sequence[Keys]) -> None:
        self._sorted = np.unique(np.concatenate([self._sorted, *keys]))
        if self._maybe is None and len(self._sorted):
            self._maybe = np.zeros(1 << _FILTER_BITS, np.bool_)
        for block in keys:
            if self._maybe is not None:
                self._maybe[_place(block)] = True

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        assert self._maybe is not None
        is_in_set: npt.NDArray[np.bool_] = self._maybe[_place(keys)]
        candidates = np.flatnonzero(is_in_set)
        at = np.searchsorted(self._sorted, keys[candidates])
        at[at == len(self._sorted)] = 0
        is_in_set[candidates] = self._sorted[at] == keys[candidates]
        return is_in_set


def _place(keys: Keys) -> npt.NDArray[np.int64]:
    hashed = keys.view(np.uint64) * _MULTIPLIER
    return (hashed >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)
