"""`Source`: rows of a table, wherever they are. Needs no TensorFlow.

`opened` finds out what a path names: a table in a group's folder, a sparse-parameter file, a checkpoint, a served
version, or a file of rows.
"""

from __future__ import annotations

import abc
import functools
import os
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.checkpoints import stored_checkpoint
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from tf_sparse_ps.rows import formats
from tf_sparse_ps.rows.facts import RowFacts
from tf_sparse_ps.rows.selection import Selection
from tf_sparse_ps.serving import version as versions
from tf_sparse_ps.serving.serving_table import ServingTable
from tf_sparse_ps.serving.version import Version
from tf_sparse_ps.stored import tables
from tf_sparse_ps.stored.contents import Content, FileTable, LiveTable, ServedTable
from tf_sparse_ps.stored.paths import Kind, kind_of
from tf_sparse_ps.stored.tables import StoredTable
from tf_sparse_ps.table.arrays import Keys, as_keys, as_rows, block_rows, checksum
from tf_sparse_ps.table.groups import plain_name
from tf_sparse_ps.table.scan import Block
from tf_sparse_ps.table.shards import Shard
from tf_sparse_ps.table.table import Table
from tf_sparse_ps.urls import local_path

OPENED = (Table, ServingTable, str, os.PathLike)  # what `opened` takes
_KEYS_AT_ONCE = 1 << 16
_END_BYTES = 1 << 16


class Source(abc.ABC):
    """Rows of a table in one state.

    Attributes:
      name: The source, for messages: "table /dev/shm/...".
      facts: The facts about the table.
      at_most: The number of rows, at most; 0: it is not known.
      identity: A description of the content that ranks compare.
      shard: The shard that the rows are; None: the whole table.
    """

    name: str
    facts: RowFacts
    at_most: int
    identity: str
    shard: Shard | None = None

    @abc.abstractmethod
    def blocks(self, slots: bool) -> Iterator[Block]:
        """Yields all rows, each key once. `slots`: whether the blocks have the slots."""

    def entries(self, keys: Keys, slots: bool) -> Block | None:
        """Returns the rows of at most `_KEYS_AT_ONCE` keys that are present; None: the source cannot look keys up."""
        return None

    def selected(self, selection: Selection, slots: bool) -> Generator[tuple[Block, int], None, None]:
        """Yields the selected rows in blocks, each with the number of rows that were read for it."""
        keys = None if selection.old is None else np.unique(selection.old)
        if keys is not None and len(keys) <= _KEYS_AT_ONCE:
            entries = self.entries(keys, slots)
            if entries is not None:
                yield selection.of(entries), len(entries.keys)
                return
        for block in self.blocks(slots):
            yield (block if selection.everything else selection.of(block)), len(block.keys)


class TableSource(Source):
    """A table of a group, a sparse-parameter file, a checkpoint or a served version, in the state of one step."""

    def __init__(self, content: Content) -> None:
        self._content, self.name, self.at_most = content, content.where, content.at_most
        self.facts = RowFacts.of_header(plain_name(content.name), content.header)
        self.identity, self.shard = content.identity, content.shard

    def blocks(self, slots: bool) -> Iterator[Block]:
        for block in self._content.blocks(slots=slots):
            yield block._replace(metadata={})

    def entries(self, keys: Keys, slots: bool) -> Block | None:
        if not self._content.finds_keys:
            return None
        limit = self.facts.key_limit
        known = keys if limit is None else keys[(keys >= 0) & (keys < limit)]
        if self.shard is not None:
            known = known[self.shard.has(known)]
        entries = self._content.entries(known, slots=slots)
        values = tuple(entries.planes[slot] for slot in self._content.slots) if slots else ()
        return Block(known, entries.rows, values, {}).where(entries.present)


class ArraySource(Source):
    """Keys and rows in memory.

    Attributes:
      keys: The keys, int64[n].
    """

    def __init__(self, keys: npt.ArrayLike, rows: npt.ArrayLike, name: str = "the given arrays") -> None:
        self.keys, values = as_keys(keys), np.asarray(rows)
        if self.keys.ndim != 1 or values.ndim != 2 or len(values) != len(self.keys) or not values.shape[1]:
            raise InvalidArgumentError(
                "rows in arrays are keys, integers [n], and rows, floats [n, dim]. Received: keys of shape "
                f"{self.keys.shape}, rows of shape {values.shape}"
            )
        unique, counts = np.unique(self.keys, return_counts=True)
        if len(unique) < len(self.keys):
            raise InvalidArgumentError(
                f"the keys of rows must differ. Received: key {unique[counts > 1][0]} several times"
            )
        self._rows = as_rows(values, "rows")
        self.name, self.at_most = name, len(self.keys)
        self.facts = RowFacts("", int(self._rows.shape[1]))
        self.identity = f"checksums {checksum(self.keys)} and {checksum(self._rows)}"

    def blocks(self, slots: bool) -> Iterator[Block]:
        size = block_rows(self.facts.dim)
        for start in range(0, len(self.keys), size):
            part = slice(start, start + size)
            yield Block(self.keys[part], self._rows[part], (), {})


class RowFileSource(Source):
    """A file of rows."""

    def __init__(self, path: Path) -> None:
        self._reader = formats.reader(path)
        self.name, self.facts, self.at_most = f"file {path}", self._reader.facts, self._reader.at_most
        self.identity = f"{ends_of(path)}, {self.facts.encode()}"

    def blocks(self, slots: bool) -> Iterator[Block]:
        return self._reader.blocks(slots)


def ends_of(path: Path) -> str:
    """Describes a file for comparison by its size and both ends, which hold checksums of the rest in some formats."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.read(_END_BYTES)
        stream.seek(max(0, size - _END_BYTES))
        last = stream.read(_END_BYTES)
    return f"file of {size} bytes with the checksums {zlib.crc32(first):08x} and {zlib.crc32(last):08x} of its ends"


def opened(source: Any, table: str | None = None) -> Source:
    """Returns a source.

    Args:
      source: A `tsps.Table`, a `tsps.ServingTable`, or a path: of a table in a group's folder, or of the group; of a
        sparse-parameter file; of a checkpoint, or of a directory of checkpoints, whose newest whole one is read; of a
        served version, or of a directory of versions, whose newest one is read; of a file of rows.
      table: The name of the table in a group, a checkpoint or a version. None: its only table.

    Raises:
      NotFoundError: There is nothing at the path, or it has no such table.
      InvalidArgumentError: The path is something else; or there are several tables, and `table` is None.
      DamagedFileError, UnsupportedError: A file is damaged, or of a later version.
    """
    if isinstance(source, Source):
        return source
    alone = _with_one_table(source)
    if alone is not None:
        if table is not None and table not in (alone.facts.table, "0"):
            raise NotFoundError(f"{alone.name} has the rows of one table, {alone.facts.table!r}. Received: {table!r}")
        return alone
    if not isinstance(source, str | os.PathLike):
        raise InvalidArgumentError(
            "rows come from a tsps.Table, a tsps.ServingTable, or the path of a table, a sparse-parameter file, a "
            f"checkpoint, a served version or a file of rows. Received: {type(source).__name__}"
        )
    path = Path(local_path(source, "source"))
    found = kind_of(path)
    if found is None:
        raise InvalidArgumentError(
            f"{path} has no rows: it is no table, group, sparse-parameter file, checkpoint or served version, no "
            f"directory of checkpoints or versions, and no file that ends with one of {sorted(formats.ENDINGS)}"
        )
    return TableSource(_of_checkpoint(path, table) if found[0] == "checkpoint" else chosen(*found, table).open())


def _with_one_table(source: Any) -> Source | None:
    """Returns a source that has one table, whatever its name; None: the source is another one."""
    if isinstance(source, Table):
        return TableSource(LiveTable(source))
    if isinstance(source, ServingTable):
        return TableSource(ServedTable(source))
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(local_path(source, "source"))
    if not path.is_file():
        return None
    if path.suffix.lower() in formats.ENDINGS:
        return RowFileSource(path)
    if path.parent.name == versions.ASSETS:
        return TableSource(ServedTable(ServingTable.open(path)))
    return TableSource(FileTable(path)) if kind_of(path) is not None else None  # no other kind is a file


def chosen(kind: Kind, path: Path, table: str | None) -> StoredTable:
    """Returns a table of a group or a version, or the table at a path.

    Args:
      kind: The kind of the path: "group", "version" or "table".
      path: The path.
      table: The name of the table; None: the only one.

    Raises:
      NotFoundError, InvalidArgumentError: As `tables.choose`.
    """
    return tables.choose(path, _tables(kind, path), table)


def common_name(source: Any, name: str) -> str | None:
    """Returns `name` if a path has several tables and one of this name, else None."""
    if not isinstance(source, str | os.PathLike) or not os.path.isdir(source):
        return None
    path = Path(os.path.abspath(source))
    found = kind_of(path)
    names = [] if found is None else [plain_name(table.name) for table in _tables(*found)]
    return name if names.count(name) == 1 else None


def _tables(kind: Kind, path: Path) -> list[StoredTable]:
    if kind == "table":
        return [StoredTable(path.name, functools.partial(tables.live, path))]
    if kind == "group":
        return tables.of_group(path)
    if kind == "version":
        return tables.of_version(Version(path))
    if kind == "checkpoint":
        return tables.of_checkpoint(stored_checkpoint.look(path))
    return []


def _of_checkpoint(path: Path, table: str | None) -> Content:
    """Returns a table of a checkpoint, or of the newest whole one in a directory, whose files are read and checked."""
    checkpoint = CheckpointDirectory.read(path)
    content = tables.choose(checkpoint.path, tables.of_checkpoint(checkpoint), table).open()
    if content.shard is not None:
        raise UnsupportedError(
            f"checkpoint {checkpoint.path} has only the rows of {content.shard} of table {content.name!r} "
            "(per_node=True). Restore the checkpoints of all machines in a job, and export its table"
        )
    return content
