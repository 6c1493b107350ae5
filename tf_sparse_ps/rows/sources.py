"""`Source`: rows of a table, wherever they are. Needs no TensorFlow.

`opened` finds out what a path names: a table in a group's folder, a sparse-parameter file, a checkpoint, a served
version, or a file of rows.
"""

from __future__ import annotations

import abc
import contextlib
import os
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import _table
from tf_sparse_ps.checkpoints import erasing, manifest, stored_checkpoint
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.config.admission import SKETCH
from tf_sparse_ps.errors import InvalidArgumentError, NotFoundError, TableError, UnsupportedError
from tf_sparse_ps.rows import formats
from tf_sparse_ps.rows.facts import RowFacts
from tf_sparse_ps.rows.selection import Selection
from tf_sparse_ps.serving import version as versions
from tf_sparse_ps.serving.serving_table import ServingTable
from tf_sparse_ps.table.arrays import Keys, as_keys, as_rows, block_rows, checksum
from tf_sparse_ps.table.groups import plain_name
from tf_sparse_ps.table.parameter_files import MAGIC
from tf_sparse_ps.table.scan import Block
from tf_sparse_ps.table.table import Table

PARAMETER_FILE = ".tfsps"
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
    """

    name: str
    facts: RowFacts
    at_most: int
    identity: str

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
    """A `tsps.Table`, in the state of one step."""

    def __init__(self, table: Table) -> None:
        stats = table.stats()
        rule = stats["optimizer"]
        self._table = table
        self.name = f"table {table.path}"
        self.at_most = int(stats["rows"])
        self.facts = RowFacts(
            table=plain_name(os.path.basename(table.path)),
            dim=table.config.dim,
            dtype=table.config.dtype,
            key_limit=table.config.key_limit,
            step=table.step,
            optimizer=str(rule["kind"]),
            slot_init=tuple(map(float, rule["slot_init"])),
            initializer=table.core_initializer(),
            trained_by=(int(stats["trained_by"][0]), int(stats["trained_by"][1])),
        )
        self.identity = f"table {table.uuid} in state {table.version()}"

    def blocks(self, slots: bool) -> Iterator[Block]:
        with self._table.scan(slots=slots) as scan:
            for block in scan:
                yield block._replace(metadata={})

    def entries(self, keys: Keys, slots: bool) -> Block | None:
        limit = self.facts.key_limit
        known = keys if limit is None else keys[(keys >= 0) & (keys < limit)]
        if self._table.shard is not None:
            known = known[self._table.shard.has(known)]
        present, rows, values = self._table.entries(known, slots=slots)
        return Block(known, rows, values if slots else (), {}).where(present)


class ParameterFileSource(Source):
    """A sparse-parameter file."""

    def __init__(self, path: Path) -> None:
        self._reader = _table.ParameterFileReader(os.fspath(path))
        info = self._reader.info()
        n_blocks = self._reader.blocks()
        self.name, self.at_most = f"file {path}", int(info["n_rows"])
        self.facts = RowFacts.of_header(path.name.removesuffix(PARAMETER_FILE), info)
        ends = [self._reader.block_checksum(number) for number in {0, n_blocks - 1} if n_blocks]
        self.identity = f"{self.at_most} rows, {self.facts.encode()}, checksums of blocks {ends}"

    def blocks(self, slots: bool) -> Iterator[Block]:
        for number in range(self._reader.blocks()):
            keys, rows, values, _ = self._reader.read_block(number, slots)
            yield Block(keys, rows, tuple(values), {})


class CheckpointSource(Source):
    """A table of a checkpoint."""

    def __init__(self, checkpoint: StoredCheckpoint, table: str | None) -> None:
        number = erasing.number_of(checkpoint, table)
        name = str(checkpoint.manifest.tables[number]["name"])
        self._rows = StoredRows(checkpoint, number)
        if self._rows.shard is not None:
            raise UnsupportedError(
                f"checkpoint {checkpoint.path} has only the rows of {self._rows.shard} of table {name!r} "
                "(per_node=True). Restore the checkpoints of all machines in a job, and export its table"
            )
        self.name = f"table {name!r} of checkpoint {checkpoint.path}"
        self.facts = RowFacts.of_header(name, self._rows.info)
        self.at_most = self._rows.at_most
        self.identity = f"table {number} of the checkpoint with id {checkpoint.manifest.id}"

    def blocks(self, slots: bool) -> Iterator[Block]:
        for block in self._rows.blocks(slots):
            yield block._replace(metadata={})


class ServedSource(Source):
    """A table of a served version, which has no slots."""

    def __init__(self, table: ServingTable, name: str | None = None) -> None:
        files = list(table.files())
        self._table = table
        self.name = f"served table {table.path}"
        self.at_most = sum(int(file["n_rows"]) for file in files)
        self.facts = RowFacts(
            table=name or plain_name(Path(table.path).stem),
            dim=table.dim,
            dtype=str(files[0]["dtype"]),
            key_limit=int(files[0]["key_limit"]) or None,
            step=table.step,
            initializer=dict(files[0]["initializer"]),
        )
        self.identity = f"served files {[(file['bytes'], file['crc']) for file in files]}"

    def blocks(self, slots: bool) -> Iterator[Block]:
        size = min(_KEYS_AT_ONCE, block_rows(self.facts.dim))
        for part in self._table.key_parts():
            for start in range(0, len(part), size):
                keys = part[start : start + size]
                yield Block(keys, self._table.lookup(keys), (), {})

    def entries(self, keys: Keys, slots: bool) -> Block | None:
        limit = self.facts.key_limit
        known = keys if limit is None else keys[(keys >= 0) & (keys < limit)]
        present = known[self._table.contains(known)]
        return Block(present, self._table.lookup(present), (), {})


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
    if isinstance(source, Table):
        return TableSource(source)
    if isinstance(source, ServingTable):
        return ServedSource(source)
    if not isinstance(source, str | os.PathLike):
        raise InvalidArgumentError(
            "rows come from a tsps.Table, a tsps.ServingTable, or the path of a table, a sparse-parameter file, a "
            f"checkpoint, a served version or a file of rows. Received: {type(source).__name__}"
        )
    path = Path(os.path.abspath(source))
    if path.is_file():
        return _of_file(path)
    if path.is_dir():
        return _of_folder(path, table)
    raise NotFoundError(f"{path} does not exist, so there are no rows to read")


def chosen_table(source: Any, name: str) -> str | None:
    """Returns `name` if a path has several tables and one of this name, else None."""
    if not isinstance(source, str | os.PathLike) or not os.path.isdir(source):
        return None
    path = Path(os.path.abspath(source))
    if (path / "group").is_file():
        names = list(map(plain_name, _tables_of_group(path)))
    elif is_checkpoint(path):
        names = _tables_of_checkpoint(path)
    elif versions.is_complete(path) or any(versions.complete(path)):
        names = [entry.name for entry in versions.newest(path).tables]
    else:
        return None
    return name if names.count(name) == 1 else None


def _tables_of_group(path: Path) -> list[str]:
    """Returns the folders of the tables in a group, without those of counts of keys without a row."""
    names = [entry.name for entry in path.iterdir() if (entry / "config").is_file()]
    return sorted(name for name in names if not name.endswith(SKETCH))


def _tables_of_checkpoint(path: Path) -> list[str]:
    """Returns the names of the tables in a checkpoint, or in the newest one of a directory. Reads manifests only."""
    folders = [path] if CheckpointDirectory.names(path) else [found.path for found in CheckpointDirectory(path).find()]
    for folder in folders:
        with contextlib.suppress(TableError, OSError):  # the checkpoint is damaged, and another one will be read
            return [str(table["name"]) for table in stored_checkpoint.look(folder).manifest.row_tables]
    return []


def is_parameter_file(path: Path) -> bool:
    """Whether a file is a sparse-parameter file."""
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint or a directory of checkpoints."""
    return (path / manifest.NAME).is_file() or bool(CheckpointDirectory(path).find())


def table_path(path: Path, table: str | None) -> Path | None:
    """Returns the folder of a table, given that folder or its group's. None: the path is neither.

    Raises:
      NotFoundError, InvalidArgumentError: The group has no such table, or several, and `table` is None.
    """
    if (path / "config").is_file() and (path.parent / "group").is_file():
        if table not in (None, path.name, plain_name(path.name)):
            raise NotFoundError(f"{path} is table {plain_name(path.name)!r}, not {table!r}")
        return path
    if not (path / "group").is_file():
        return None
    names = _tables_of_group(path)
    found = [name for name in names if table in (None, name, plain_name(name))]
    if len(found) == 1:
        return path / found[0]
    if not found:
        raise NotFoundError(f"group {path} has no table {table!r}. Its tables are {names}")
    raise InvalidArgumentError(f"group {path} has the tables {names}. Name one with table=. Received: {table!r}")


def _of_file(path: Path) -> Source:
    if is_parameter_file(path):
        return ParameterFileSource(path)
    if path.suffix.lower() in formats.ENDINGS:
        return RowFileSource(path)
    if path.parent.name == versions.ASSETS:
        return ServedSource(ServingTable.open(path))
    raise InvalidArgumentError(
        f"{path} is not a file of rows: it is no sparse-parameter file, and does not end with one of "
        f"{sorted(formats.ENDINGS)}"
    )


def _of_folder(path: Path, table: str | None) -> Source:
    if (found := table_path(path, table)) is not None:
        return TableSource(Table.open(found))
    if is_checkpoint(path):
        return CheckpointSource(CheckpointDirectory.read(path), table)
    if versions.is_complete(path) or any(versions.complete(path)):
        opened_table = ServingTable.open(path, table)
        entries = versions.newest(path).tables
        names = [entry.name for entry in entries if entry.asset == Path(opened_table.path).name]
        return ServedSource(opened_table, names[0] if names else None)
    raise InvalidArgumentError(
        f"{path} is a folder, but no table, group, checkpoint, directory of checkpoints, or served version"
    )
