"""Sparse-parameter files (docs/format.md): tables are written to them and read from them."""

from __future__ import annotations

import abc
import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import _table
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.folders import Folder, Trust
from tf_sparse_ps.table import shards
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.open_table import OpenTable
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block, Scan
from tf_sparse_ps.table.shards import Shard

_ROWS_AT_ONCE = 1 << 18


class Written(NamedTuple):
    """A file that has been written, and is on the disk."""

    rows: int
    crc32: str
    """Of its bytes, 8 hexadecimal digits."""
    rows_checksum: str
    """Of its blocks' checksums, which tells them from those of other files; likewise."""


class Content(Protocol):
    """Rows of a table, as of one state: a `Scan`, or what is like one.

    Attributes:
      step: Of that state.
      optimizer: Whose slots the rows have, as the core says it.
      trained_by: Which optimizer made the slots, 0 if that is not known, and after how many of its steps.
    """

    @property
    def step(self) -> int: ...
    @property
    def optimizer(self) -> dict[str, Any]: ...
    @property
    def trained_by(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Any: ...


class ParameterFiles(OpenTable, abc.ABC):
    """The methods of `Table` that write and read sparse-parameter files."""

    @abc.abstractmethod
    def scan(self, *, slots: bool = True) -> Scan:
        """See `Table.scan`."""

    @abc.abstractmethod
    def keys(self) -> Keys:
        """See `Table.keys`."""

    @abc.abstractmethod
    def core_initializer(self) -> dict[str, Any]:
        """See `Table.core_initializer`."""

    @abc.abstractmethod
    def assign(
        self,
        keys: npt.ArrayLike,
        rows: npt.ArrayLike,
        slots: Sequence[npt.ArrayLike] = (),
        metadata: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """See `Table.assign`."""

    @abc.abstractmethod
    def erase(self, keys: npt.ArrayLike) -> int:
        """See `Table.erase`."""

    def export_parameter_file(self, path: str | os.PathLike[str], *, slots: bool = True, progress: bool = True) -> int:
        """Writes rows, slots and metadata to a sparse-parameter file (docs/format.md), whole or not at all.

        Of a shard its rows alone; the file says which shard that is.

        Args:
          path: The file; replaced if there.
          slots: Write the optimizer's slots and the metadata planes too.
          progress: Show a progress bar if it takes longer than two seconds.

        Returns:
          The number of rows written.

        Raises:
          UnavailableError: The table kept changing.
          WriterLockedError: Another process or thread is writing this file.
        """
        with self.scan(slots=slots) as scan:
            write(self, scan, path, shard=self.shard, slots=slots, progress=progress)
            return len(scan)

    def load_parameter_file(self, path: str | os.PathLike[str], *, slots: bool = True, progress: bool = True) -> int:
        """Assigns every row of a sparse-parameter file, block by block; to a shard those of its keys.

        Warns if the file has the rows of one node alone, of a table that was spread over several, and this is not that
        node's shard: it is whole when the files of all nodes have been loaded.

        Args:
          path: The file.
          slots: Also read its slots and metadata. A table without an optimizer then gets the file's; metadata planes
            that the file does not have get their initial value. False: rows alone; present keys keep their slots and
            metadata.
          progress: Show a progress bar if it takes longer than two seconds.

        Returns:
          The number of rows assigned.

        Raises:
          NotFoundError, DamagedFileError: The file is missing, truncated, foreign, newer or damaged. Blocks before a
            damaged one have been assigned.
          InvalidArgumentError: The file's rows have another width.
          StateError: The file has slots of another rule than the table, or a metadata plane that the table does not
            have, or has with another type or width; nothing has been assigned. Mode is "r".
        """
        self.check_writable()
        reader = _table.ParameterFileReader(os.fspath(path))
        info = reader.info()
        if info["dim"] != self.config.dim:
            raise InvalidArgumentError(
                f"{path} has rows of {info['dim']} floats; table {self.path} has {self.config.dim}"
            )
        absent = _planes_without_values(self, path, info["metadata"]) if slots else []
        rule = info["optimizer"]
        if slots and rule["kind"] != "none":
            self.bind_slots(
                rule["kind"], rule["slot_init"], f"{path} has slots of {rule['kind']}; load it with slots=False"
            )
        file_shard, loaded = Shard.of(info), 0
        if file_shard is not None and file_shard != self.shard:
            warnings.warn(
                f"{path} has {shards.describe(file_shard)}. Table {self.path} lacks the other rows until their files "
                "are loaded",
                stacklevel=3,
            )
        with bar(info["n_rows"], f"load {Path(path).name}", show=progress) as shown:
            for block in range(reader.blocks()):
                keys, rows, values, metadata = reader.read_block(block, slots)
                metadata |= {plane.name: plane.full(len(keys)) for plane in absent}
                shown.update(len(keys))
                if self.shard is not None:
                    own = self.shard.has(keys)
                    keys, rows, values = keys[own], rows[own], [one[own] for one in values]
                    metadata = {name: one[own] for name, one in metadata.items()}
                self.assign(keys, rows, values, metadata)
                loaded += len(keys)
        if slots and rule["kind"] != "none":
            self.set_trained_by(*info["trained_by"])
        return loaded

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the table to `<folder>/<name>.tfsps`, a sparse-parameter file with all planes; returns its path.

        Of a shard its rows alone, and the file says so; `model.save()` in the job that trains it writes those of all.

        Raises:
          UnavailableError: The table kept changing.
          WriterLockedError: Another process or thread is writing this file.
        """
        Folder.open(folder, Trust.GROUP, make=True).close()
        path = Path(folder) / f"{self.config.name}.tfsps"
        self.export_parameter_file(path)
        return path

    def restore(self, folder: str | os.PathLike[str]) -> int:
        """Makes the table what `save` wrote to `folder`: other keys are erased. The step stays.

        A restore that is killed leaves a mixture; restore again. Returns the number of rows.

        Raises:
          StateError: The file has the rows of one shard, and this is another one, or a whole table.
        """
        path = Path(folder) / f"{self.config.name}.tfsps"
        reader = _table.ParameterFileReader(os.fspath(path))  # every block is read before anything is erased
        shards.check_restores(str(path), Shard.of(reader.info()), self.path, self.shard)
        kept = [reader.read_block(block, False)[0] for block in range(reader.blocks())]
        rows = self.load_parameter_file(path)
        self.erase(np.setdiff1d(self.keys(), np.concatenate([np.empty(0, np.int64), *kept])))
        return rows


def write(
    table: ParameterFiles,
    content: Content,
    path: str | os.PathLike[str],
    *,
    shard: Shard | None,
    slots: bool,
    progress: bool = True,
) -> None:
    """Writes rows to a file.

    Args:
      table: Says what the rows are.
      content: The rows: the table's, or, of a shard, those of all nodes.
      path: The file.
      shard: Whose rows they are; None: of the whole table.
      slots: With slots and metadata.
      progress: Show a progress bar.
    """
    write_content(
        header(table, content, shard=shard, slots=slots), content, path, n_rows=len(content), progress=progress
    )


def header(table: ParameterFiles, content: Content, *, shard: Shard | None, slots: bool) -> dict[str, Any]:
    """What the header of a file says, but for the number of rows. Arguments as of `write`; reads no row."""
    rule = content.optimizer if slots else {"kind": "none", "slot_init": ()}
    return {
        "dim": table.config.dim,
        "key_limit": table.config.key_limit or 0,
        "step": content.step,
        "optimizer": rule["kind"],
        "slot_init": list(rule["slot_init"]),
        "initializer": table.core_initializer(),
        "metadata": [plane.for_core() for plane in table.config.metadata] if slots else [],
        "dtype": table.config.dtype,
        "node": shard.node if shard else 0,
        "nodes": shard.nodes if shard else 0,
        "trained_by": content.trained_by if slots else (0, 0),
    }


def write_content(
    facts: Mapping[str, Any],
    blocks: Iterable[Block],
    path: str | os.PathLike[str],
    *,
    n_rows: int | None,
    progress: bool = True,
    may_go_on: Callable[[], None] = lambda: None,
) -> Written:
    """Writes rows to a file, under a header.

    Args:
      facts: The `header`.
      blocks: The rows.
      path: The file.
      n_rows: How many they are; None: that is seen when they have been written.
      progress: Show a progress bar.
      may_go_on: Called before some rows are written, again and again. What it raises ends the writing.
    """
    writer = _table.ParameterFileWriter(path=os.fspath(path), n_rows=n_rows, **facts)
    written = 0
    # Closed, it removes what is not finished, and another one may write to the path: an exception keeps the object.
    with contextlib.closing(writer), bar(n_rows or 0, f"export {Path(path).name}", show=progress) as shown:
        write_to = getattr(blocks, "write_to", None)
        may_go_on()
        while write_to is not None and (n := write_to(writer, _ROWS_AT_ONCE)):  # a scan's rows are no arrays of ours
            written += n
            shown.update(n)
            may_go_on()
        for keys, rows, values, metadata in blocks:
            may_go_on()
            writer.append(keys, rows, list(values), metadata)
            written += len(keys)
            shown.update(len(rows))
        crc32, rows_checksum = writer.finish()
    return Written(written, f"{crc32:08x}", f"{rows_checksum:08x}")


def _planes_without_values(
    table: ParameterFiles, path: str | os.PathLike[str], stored: Sequence[Mapping[str, Any]]
) -> list[MetadataPlane]:
    """The table's metadata planes that a file, whose planes are `stored`, does not have.

    Raises:
      StateError: The file has one that the table does not have, or has with another type or width.
    """
    mine = {plane.name: plane for plane in table.config.metadata}
    for theirs in map(MetadataPlane.from_core, stored):
        own = mine.pop(theirs.name, None)
        if own is None or (own.type, own.elements) != (theirs.type, theirs.elements):
            has = "has no such plane" if own is None else f"has {own}"
            raise StateError(
                f"{path} has a metadata plane {theirs}, table {table.path} {has}; load it with slots=False for the "
                "rows alone"
            )
    return list(mine.values())
