"""Replaces the newest checkpoint of a directory by one that builds on no other. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tf_sparse_ps.checkpoints import array_file
from tf_sparse_ps.checkpoints.directories import opened
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory, CheckpointFolder, Save
from tf_sparse_ps.checkpoints.manifest import TablePart, table_file_name
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import KeySet, StoredRows
from tf_sparse_ps.errors import NotFoundError, StateError, TableError, UnsupportedError
from tf_sparse_ps.table import parameter_files
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.groups import table_number
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block


@dataclasses.dataclass(frozen=True)
class Compacted:
    """The result of `compact`.

    Attributes:
      checkpoint: The folder of the newest whole checkpoint, which holds all rows now.
      merged: The names of the checkpoints whose rows were put together, the oldest first. Empty if it held all rows.
      removed: The names of those that were removed.
      bytes: The bytes of the checkpoint's files.
    """

    checkpoint: Path
    merged: tuple[str, ...]
    removed: tuple[str, ...]
    bytes: int


def compact(path: str | os.PathLike[str], keep: int | None = None) -> Compacted:
    """Writes the newest whole checkpoint again, with all rows, and removes the increment that it replaces.

    A job that saves to the directory meanwhile gets an error, and saves again. A job that built on the replaced
    increment saves all rows next. If this is killed, all checkpoints are left, and perhaps the new one as well.

    Args:
      path: The directory, or its URL.
      keep: Remove older checkpoints but for so many; None: remove none.

    Raises:
      NotFoundError: There is no whole checkpoint.
      WriterLockedError: Another process is saving to the directory.
      StateError: A checkpoint was saved meanwhile, and nothing was changed.
      OSError: From the file system.
    """
    with opened(path) as directory:
        return _compact(directory, keep)


def _compact(directory: CheckpointDirectory, keep: int | None) -> Compacted:
    folders = directory.find()
    checkpoint, _ = directory.newest_here()
    if checkpoint is None:
        raise NotFoundError(f"{directory.name} has no checkpoint that is whole")
    step = next(folder.step for folder in folders if folder.path == checkpoint.path)
    with _saving(directory, folders, step, "tf-sparse-ps checkpoint compact") as save:
        newest = checkpoint.path
        if checkpoint.builds_on:
            write(checkpoint, save)
            newest = save.path
        else:
            save.discard()
        _remove_replaced(directory, newest)
        if keep is not None:
            directory.prune(newest, keep)
    content = directory.look(newest.name).manifest
    paths_after = {folder.path for folder in directory.find()}
    return Compacted(
        newest,
        tuple(part.path.name for part in checkpoint.parts) if checkpoint.builds_on else (),
        tuple(sorted(folder.path.name for folder in folders if folder.path not in paths_after)),
        sum(entry.size for entry in content.files),
    )


@contextlib.contextmanager
def _saving(
    directory: CheckpointDirectory, folders: Sequence[CheckpointFolder], step: int, writer: str
) -> Iterator[Save]:
    """Surrounds a save for which checkpoints were read before. `folders`: what the directory had then.

    Raises:
      StateError: A checkpoint was saved meanwhile, and nothing was changed.
      WriterLockedError: Another process is saving to the directory.
    """
    with directory.saving(step, writer) as save:
        if directory.find() != folders:
            raise StateError(f"a checkpoint was saved to {directory.name} meanwhile. Nothing was changed. Try again")
        yield save


@dataclasses.dataclass(frozen=True)
class Rewriting:
    """The newest whole checkpoint of a directory, of which a table is written again with other rows.

    Attributes:
      directory: The directory.
      folders: Its checkpoints, the newest first.
      checkpoint: The newest whole one.
      number: The place of the table among its tables.
    """

    directory: CheckpointDirectory
    folders: Sequence[CheckpointFolder]
    checkpoint: StoredCheckpoint
    number: int

    @classmethod
    def of(cls, directory: CheckpointDirectory, table: str | None, remedy: str) -> Rewriting:
        """Reads the newest whole checkpoint.

        Args:
          directory: The directory.
          table: The name of the table, or its place among the tables, from "0" on. None: the only table.
          remedy: The end of the message about a directory of one machine.

        Raises:
          NotFoundError: There is no whole checkpoint, or it has no such table.
          InvalidArgumentError: It has several such tables.
          UnsupportedError: Each machine has a directory of its own (`per_node=True`).
        """
        folders = directory.find()
        checkpoint, _ = directory.newest_here()
        if checkpoint is None:
            raise NotFoundError(f"{directory.name} has no checkpoint that is whole")
        if checkpoint.manifest.node is not None:
            raise UnsupportedError(
                f"{directory.name} has the checkpoints of machine {checkpoint.manifest.node} only "
                f"(per_node=True){remedy}"
            )
        names = [str(stored["name"]) for stored in checkpoint.manifest.row_tables]
        return cls(directory, folders, checkpoint, table_number(checkpoint.shown, names, table))

    @contextlib.contextmanager
    def saving(self, writer: str) -> Iterator[Save]:
        """Surrounds the save of the new checkpoint.

        Raises:
          StateError: A checkpoint was saved meanwhile, and nothing was changed.
          WriterLockedError: Another process is saving to the directory.
        """
        step = next((folder.step for folder in self.folders if folder.path == self.checkpoint.path), 0)
        with _saving(self.directory, self.folders, step, writer) as save:
            yield save


def write(
    checkpoint: StoredCheckpoint,
    save: Save,
    without: Mapping[int, Keys] | None = None,
    blocks: Mapping[int, Iterable[Block]] | None = None,
) -> int:
    """Writes a checkpoint again, as one that builds on no other.

    It keeps its id if its rows stay. With other rows it gets another id, the same on all machines that write these.

    Args:
      checkpoint: The checkpoint.
      save: The save, which is finished.
      without: The keys that are left out, int64[n], by the number of the table.
      blocks: The rows that are written in place of the stored ones, by the number of the table.

    Returns:
      The number of rows that were left out.
    """
    content = checkpoint.manifest
    left_out = 0
    tables: list[dict[str, Any]] = []
    for number, table in enumerate(content.tables):
        file = save.folder / table_file_name(number, str(table["name"]))
        rows = StoredRows(checkpoint, number)
        kept_blocks = _Blocks(rows, (without or {}).get(number))
        written = write_rows(rows, file, str(table["name"]), (blocks or {}).get(number, kept_blocks))
        left_out += kept_blocks.left_out
        part = TablePart(file.name, rows_checksum=written.rows_checksum)
        tables.append({**table, "parts": [dataclasses.asdict(part)]})
        save.add(file.name, written.crc32)
    new_id = content.id
    if without or blocks:
        checksums = [table["parts"][0]["rows_checksum"] for table in tables]
        new_id = hashlib.blake2b(repr((content.id, checksums)).encode(), digest_size=8).hexdigest()
    table_files = {file for part in content.all_parts for file in part.files}
    for entry in content.files:
        if entry.name not in table_files:
            _copy(checkpoint.path / entry.name, save.folder / entry.name, new_id if new_id != content.id else None)
            save.add(entry.name)
    save.finish(
        dataclasses.replace(content, name=save.name, id=new_id, chain=(), tables=tuple(tables), files=tuple(save.files))
    )
    return left_out


def _copy(source: Path, target: Path, new_id: str | None) -> None:
    """Copies a file of a checkpoint. `new_id`: what its archives say from now on of which checkpoint they are."""
    if new_id is None or source.suffix != ".npz":
        shutil.copyfile(source, target)
    else:
        facts, arrays = array_file.read(source)
        array_file.write(target, list(arrays), {**facts, "id": new_id})


class _Blocks:
    """The blocks of a table of a checkpoint, without the rows of some keys.

    Attributes:
      left_out: The number of rows that were left out so far.
    """

    def __init__(self, rows: StoredRows, without: Keys | None) -> None:
        self._rows, self._without = rows, KeySet()
        self._without.add([] if without is None else [without])
        self.left_out = 0

    def __iter__(self) -> Iterator[Block]:
        for block in self._rows.blocks():
            if not self._without:
                yield block
                continue
            kept = ~self._without.has(block.keys)
            self.left_out += len(kept) - int(np.count_nonzero(kept))
            yield block.where(kept)


def write_rows(
    rows: StoredRows, path: Path, name: str, blocks: Iterable[Block] | None = None
) -> parameter_files.Written:
    """Writes a table of a checkpoint to one sparse-parameter file, with slots.

    Args:
      rows: The table's rows.
      path: The file.
      name: The table's name, for the progress bar.
      blocks: The rows that are written. None: all rows of the table.
    """
    info = rows.info
    header: dict[str, Any] = {
        key: info[key] for key in ("dim", "key_limit", "step", "initializer", "metadata", "dtype", "trained_by")
    }
    header |= {"node": rows.shard.node, "nodes": rows.shard.nodes} if rows.shard is not None else {}
    header |= {"optimizer": info["optimizer"]["kind"], "slot_init": list(info["optimizer"]["slot_init"])}

    def counted_blocks() -> Iterator[Block]:
        with bar(rows.at_most, f"write {name}") as progress:
            for block in rows.blocks() if blocks is None else blocks:
                yield block
                progress.update(len(block.keys))

    return parameter_files.write_content(header, counted_blocks(), path, n_rows=None, progress=False)


def _remove_replaced(directory: CheckpointDirectory, newest: Path) -> None:
    """Removes increments that a checkpoint with all rows has replaced, unless others build on them."""
    new_id = directory.look(newest.name).manifest.id
    replaced: list[Path] = []
    needed: set[str] = set()
    for folder in directory.find():
        try:
            content = directory.look(folder.path.name).manifest
        except (TableError, OSError):
            continue
        needed.update(link.name for link in content.chain)
        if content.id == new_id and folder.path != newest:
            replaced.append(folder.path)
    for path in replaced:
        if path.name not in needed:
            directory.remove(path)
