"""Writes tables to sparse-parameter files (docs/format.md), and reads tables from them."""

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
from tf_sparse_ps.config.metadata import USE, MetadataPlane
from tf_sparse_ps.errors import InvalidArgumentError, StateError
from tf_sparse_ps.folders import Folder, Trust
from tf_sparse_ps.table import shards
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.open_table import OpenTable
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block, Scan
from tf_sparse_ps.table.shards import Shard
from tf_sparse_ps.urls import local_path

MAGIC = b"\xf4TSPS\r\n\x1a"  # the first bytes of a file
_ROWS_AT_ONCE = 1 << 18


class Written(NamedTuple):
    """A file that has been written completely and is on the disk."""

    rows: int
    """The number of rows."""
    crc32: str
    """The checksum of the file's bytes, 8 hexadecimal digits."""
    rows_checksum: str
    """The checksum of the checksums of the file's blocks, 8 hexadecimal digits. It identifies the blocks."""


class Content(Protocol):
    """Rows of a table in one state: a `Scan`, or an object with the same methods.

    Attributes:
      step: The step of that state.
      optimizer: The update rule that the slots belong to, as the core describes it.
      trained_by: The identity of the optimizer that made the slots, 0 if it is not known, and its number of steps.
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
        """Writes rows, slots and metadata to a sparse-parameter file (docs/format.md), completely or not at all.

        A shard writes only its own rows, and the file records the shard.

        Args:
          path: The file, which is replaced if it exists.
          slots: Whether to write the optimizer's slots and the metadata planes too.
          progress: Whether to show a progress bar if the call takes longer than two seconds.

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
        """Assigns every row of a sparse-parameter file, block by block. A shard takes only the rows of its keys.

        The call warns if the file has the rows of one shard only, and this table is not that shard. The table is
        complete when the files of all nodes have been loaded.

        Args:
          path: The file.
          slots: Whether to read the slots and the metadata too. If so, a table without an optimizer gets the file's
            one, and metadata planes that the file lacks get their initial value. Otherwise present keys keep their
            slots and metadata.
          progress: Whether to show a progress bar if the call takes longer than two seconds.

        Returns:
          The number of rows assigned.

        Raises:
          NotFoundError, DamagedFileError: The file is missing, truncated, damaged, of another kind, or of a newer
            version. Blocks before a damaged one have been assigned.
          InvalidArgumentError: The file's rows have another width.
          StateError: The mode is "r"; or the file has slots of another rule than the table, or a metadata plane that
            the table lacks or has with another type or width. Nothing has been assigned.
        """
        self.check_writable()
        reader = _table.ParameterFileReader(os.fspath(path))
        info = reader.info()
        if info["dim"] != self.config.dim:
            raise InvalidArgumentError(
                f"{path} has rows of {info['dim']} floats, and table {self.path} has rows of {self.config.dim}. Load "
                "the file into a table of the same width"
            )
        absent = _planes_without_values(self, path, info["metadata"]) if slots else []
        rule = info["optimizer"]
        if slots and rule["kind"] != "none":
            self.bind_slots(
                rule["kind"],
                rule["slot_init"],
                f"{path} has slots of {rule['kind']}. Load the file with slots=False to read the rows only",
            )
        file_shard, loaded = Shard.of(info), 0
        if file_shard is not None and file_shard != self.shard:
            warnings.warn(
                f"{path} has {shards.describe(file_shard)}. Table {self.path} lacks the other rows. Load the files of "
                "the other nodes as well",
                stacklevel=3,
            )
        with bar(info["n_rows"], f"load {Path(path).name}", show=progress) as progress_bar:
            for block in range(reader.blocks()):
                keys, rows, values, metadata = reader.read_block(block, slots)
                metadata |= {plane.name: plane.full(len(keys)) for plane in absent}
                use = metadata.pop(USE.name, None)
                if slots and USE in self.config.metadata:
                    no_use = use_in(self.step, len(keys))
                    metadata[USE.name] = no_use if use is None else moved_use(use, info["step"], self.step)
                progress_bar.update(len(keys))
                if self.shard is not None:
                    in_shard = self.shard.has(keys)
                    keys, rows, values = keys[in_shard], rows[in_shard], [slot[in_shard] for slot in values]
                    metadata = {name: plane[in_shard] for name, plane in metadata.items()}
                self.assign(keys, rows, values, metadata)
                loaded += len(keys)
        if slots and rule["kind"] != "none":
            self.set_trained_by(*info["trained_by"])
        return loaded

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the table to `<folder>/<name>.tfsps`, a sparse-parameter file with all planes, and returns its path.

        A shard writes only its own rows, and the file records the shard. `model.save()`, in the job that trains the
        table, writes the rows of all shards.

        Raises:
          UnavailableError: The table kept changing.
          WriterLockedError: Another process or thread is writing this file.
        """
        Folder.open(local_path(folder, "folder"), Trust.GROUP, make=True).close()
        path = Path(folder) / f"{self.config.name}.tfsps"
        self.export_parameter_file(path)
        return path

    def restore(self, folder: str | os.PathLike[str]) -> int:
        """Restores the rows that `save` wrote to `folder`, erases all other keys, and returns the number of rows.

        The step stays. If a restore is killed, the table has old and new rows: restore it again.

        Raises:
          StateError: The file has the rows of one shard, and this table is another shard or a whole table.
        """
        path = Path(folder) / f"{self.config.name}.tfsps"
        reader = _table.ParameterFileReader(os.fspath(path))
        shards.check_restores(str(path), Shard.of(reader.info()), self.path, self.shard)
        # Every block is read, so that a damaged one is found before the table is changed.
        kept_keys = [reader.read_block(block, False)[0] for block in range(reader.blocks())]
        # Rows are erased first, because a bounded table may have no room for old and new rows together.
        self.erase(np.setdiff1d(self.keys(), np.concatenate([np.empty(0, np.int64), *kept_keys])))
        return self.load_parameter_file(path)


def use_in(step: int, n: int) -> npt.NDArray[np.uint32]:
    """Returns the use of n rows that count as used in a step, uint32[n, 2], as the plane `USE` has it."""
    return np.tile(np.array([min(step, 2**32 - 1), 0], np.uint32), (n, 1))


def moved_use(use: npt.NDArray[np.uint32], saved: int, step: int) -> npt.NDArray[np.uint32]:
    """Returns the use of rows that were saved in one step and are loaded in another. Their ages stay."""
    ages = np.maximum(saved - use[:, 0].astype(np.int64), 0)
    moved = use.copy()
    moved[:, 0] = np.clip(step - ages, 0, 2**32 - 1)
    return moved


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
      table: The table, which describes the rows.
      content: The rows of the table; for a shard, this may be the rows of all nodes.
      path: The file.
      shard: The shard that the rows belong to; None: they are all rows of the table.
      slots: Whether to write slots and metadata.
      progress: Whether to show a progress bar.
    """
    write_content(
        header(table, content, shard=shard, slots=slots), content, path, n_rows=len(content), progress=progress
    )


def header(table: ParameterFiles, content: Content, *, shard: Shard | None, slots: bool) -> dict[str, Any]:
    """Returns the header of a file without the number of rows. The arguments are those of `write`; no row is read."""
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
    """Writes a header and rows to a file.

    Args:
      facts: The result of `header`.
      blocks: The rows.
      path: The file.
      n_rows: The number of rows; None: it is not known before they are written.
      progress: Whether to show a progress bar.
      may_go_on: A function that is called before each part of the rows is written. It ends the writing by raising.
    """
    writer = _table.ParameterFileWriter(path=os.fspath(path), n_rows=n_rows, **facts)
    written = 0
    # Closing removes an unfinished file and unlocks the path. A traceback may keep the writer alive after an exception.
    with contextlib.closing(writer), bar(n_rows or 0, f"export {Path(path).name}", show=progress) as progress_bar:
        write_to = getattr(blocks, "write_to", None)
        may_go_on()
        while write_to is not None and (n := write_to(writer, _ROWS_AT_ONCE)):  # a scan's rows do not become arrays
            written += n
            progress_bar.update(n)
            may_go_on()
        for keys, rows, values, metadata in blocks:
            may_go_on()
            writer.append(keys, rows, list(values), metadata)
            written += len(keys)
            progress_bar.update(len(rows))
        crc32, rows_checksum = writer.finish()
    return Written(written, f"{crc32:08x}", f"{rows_checksum:08x}")


def _planes_without_values(
    table: ParameterFiles, path: str | os.PathLike[str], stored: Sequence[Mapping[str, Any]]
) -> list[MetadataPlane]:
    """Returns the table's metadata planes that a file lacks.

    Args:
      table: The table.
      path: The path of the file, for messages.
      stored: The planes of the file, as the core describes them.

    Raises:
      StateError: The file has a plane that the table lacks, or has with another type or width.
    """
    # Without the use of rows, loaded rows count as used now.
    table_planes = {plane.name: plane for plane in table.config.metadata if plane != USE}
    for file_plane in map(MetadataPlane.from_core, stored):
        if file_plane == USE:
            continue
        plane = table_planes.pop(file_plane.name, None)
        if plane is None or (plane.type, plane.elements) != (file_plane.type, file_plane.elements):
            difference = "has no such plane" if plane is None else f"has {plane}"
            raise StateError(
                f"{path} has a metadata plane {file_plane}, and table {table.path} {difference}. Load the file with "
                "slots=False to read the rows only"
            )
    return list(table_planes.values())
