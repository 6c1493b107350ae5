"""Makes the newest checkpoint of a directory one that builds on no other. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tf_sparse_ps.checkpoints import directory
from tf_sparse_ps.checkpoints.directory import Checked, CheckpointDirectory, Save
from tf_sparse_ps.checkpoints.manifest import TablePart, name_of_file
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.errors import NotFoundError, TableError
from tf_sparse_ps.table import parameter_files
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block


@dataclasses.dataclass(frozen=True)
class Compacted:
    """What `compact` has done.

    Attributes:
      checkpoint: The newest whole one, which has all rows now.
      merged: The names of the checkpoints whose rows were put together, the oldest first; none if it had all rows.
      removed: The names of those that were removed.
      bytes: Of the checkpoint's files.
    """

    checkpoint: Path
    merged: tuple[str, ...]
    removed: tuple[str, ...]
    bytes: int


def compact(path: Path, keep: int | None = None) -> Compacted:
    """Writes the newest whole checkpoint anew, with all rows, and removes the increment that it replaces.

    Whoever saves to the directory meanwhile gets an error, and saves again. A job that built on the replaced increment
    saves all rows next. What is killed leaves the checkpoints that there were, and perhaps the new one beside them.

    Args:
      path: The directory.
      keep: Remove older checkpoints, but for so many; None: none.

    Raises:
      NotFoundError: There is no whole checkpoint.
      WriterLockedError: Somebody is saving to the directory.
      OSError: From the file system.
    """
    own = CheckpointDirectory(path)
    before = {one.path for one in own.find()}
    found, _ = own.newest()
    if found is None:
        raise NotFoundError(f"{path} has no checkpoint that is whole")
    step = next(one.step for one in own.find() if one.path == found.path)
    with own.saving(step, "tf-sparse-ps checkpoint compact") as save:
        newest = found.path
        if found.builds_on:
            newest = _write(found, save)
        else:
            save.discard()
        _remove_replaced(own, newest)
        if keep is not None:
            own.prune(newest, keep)
    content = directory.look(newest).manifest
    after = {one.path for one in own.find()}
    return Compacted(
        newest,
        tuple(one.path.name for one in found.parts) if found.builds_on else (),
        tuple(sorted(one.name for one in before - after)),
        sum(one.size for one in content.files),
    )


def _write(found: Checked, save: Save) -> Path:
    content = found.manifest
    of_tables = {file for part in content.all_parts for file in part.files}
    for one in content.files:
        if one.name not in of_tables:
            shutil.copyfile(found.path / one.name, save.folder / one.name)
            save.add(one.name)
    tables: list[dict[str, Any]] = []
    for number, table in enumerate(content.tables):
        file = save.folder / name_of_file(number, str(table["name"]))
        written = write_rows(StoredRows(found, number), file, str(table["name"]))
        part = TablePart(file.name, rows_checksum=written.rows_checksum)
        tables.append({**table, "parts": [dataclasses.asdict(part)]})
        save.add(file.name, written.crc32)
    save.finish(dataclasses.replace(content, name=save.name, chain=(), tables=tuple(tables), files=tuple(save.files)))
    return save.path


def write_rows(rows: StoredRows, path: Path, name: str) -> parameter_files.Written:
    """Writes a table of a checkpoint to one sparse-parameter file, with slots.

    Args:
      rows: Of the table.
      path: The file.
      name: Of the table, for the progress bar.
    """
    info = rows.info
    header: dict[str, Any] = {
        key: info[key] for key in ("dim", "key_limit", "step", "initializer", "metadata", "dtype", "trained_by")
    }
    header |= {"node": rows.shard.node, "nodes": rows.shard.nodes} if rows.shard is not None else {}
    header |= {"optimizer": info["optimizer"]["kind"], "slot_init": list(info["optimizer"]["slot_init"])}

    def shown() -> Iterator[Block]:
        with bar(rows.at_most, f"write {name}") as progress:
            for block in rows.blocks():
                yield block
                progress.update(len(block.keys))

    return parameter_files.write_content(header, shown(), path, n_rows=None, progress=False)


def _remove_replaced(own: CheckpointDirectory, newest: Path) -> None:
    """Removes increments that a checkpoint with all rows has replaced, unless others build on them."""
    new_id = directory.look(newest).manifest.id
    replaced: list[Path] = []
    needed: set[str] = set()
    for one in own.find():
        try:
            content = directory.look(one.path).manifest
        except (TableError, OSError):
            continue
        needed.update(link.name for link in content.chain)
        if content.id == new_id and one.path != newest:
            replaced.append(one.path)
    for path in replaced:
        if path.name not in needed:
            own.remove(path)
