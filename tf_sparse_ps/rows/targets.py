"""Writes imported rows into a sparse-parameter file, a checkpoint, or a table that no job uses now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tf_sparse_ps.checkpoints import compaction
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.stored_rows import KeySet, StoredRows
from tf_sparse_ps.config.metadata import USE, MetadataPlane
from tf_sparse_ps.errors import NotFoundError, StateError, TableExistsError
from tf_sparse_ps.rows.facts import RowFacts, check_dim
from tf_sparse_ps.rows.selection import check_finite, check_range
from tf_sparse_ps.rows.sources import Source
from tf_sparse_ps.stored.contents import LiveTable
from tf_sparse_ps.table import parameter_files
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.groups import plain_name
from tf_sparse_ps.table.parameter_files import use_in
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block, concatenated, joined
from tf_sparse_ps.table.table import Table


def read_keys(source: Source, target: str, limit: int | None, *, slots: bool, progress: bool) -> Keys:
    """Reads all rows once, so that a bad one is found before anything is written. Needs 8 bytes per row.

    Args:
      source: The rows.
      target: What the rows are for, for messages.
      limit: The limit of the target's keys, or None.
      slots: Whether slots are taken, too.
      progress: Whether to show a progress bar.

    Returns:
      The keys in ascending order, int64[n].

    Raises:
      StateError: A key occurs twice.
      KeyRangeError: A key is outside a bounded target.
      DamagedFileError, InvalidArgumentError: The source cannot be read, or a row is not finite.
    """
    keys: Keys = np.empty(source.at_most, np.int64)
    n = 0
    with bar(source.at_most, f"check {source.facts.table or 'rows'}", show=progress) as progress_bar:
        for block in source.blocks(slots):
            check_finite(block, source.name)
            if n + len(block.keys) > len(keys):  # the number was not known
                keys = np.concatenate([keys[:n], np.empty(n + len(block.keys), np.int64)])
            keys[n : n + len(block.keys)] = block.keys
            n += len(block.keys)
            progress_bar.update(len(block.keys))
    keys = keys[:n]
    keys.sort()
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        raise StateError(f"{source.name} has several rows of key {repeated[0]}. Each key must have one row")
    check_range(keys, target, limit)
    return keys


def check_rule(source: Source, target: str, facts: RowFacts) -> None:
    """Raises StateError if the slots of a source do not fit those of a target, which has `facts`."""
    theirs, ours = source.facts, facts
    if (theirs.optimizer, theirs.slot_init) != (ours.optimizer, ours.slot_init):
        raise StateError(
            f"{source.name} has slots of {theirs.optimizer} with initial values {theirs.slot_init}, and {target} has "
            f"those of {ours.optimizer} with {ours.slot_init}. Import with slots=False, which takes the rows alone"
        )


# --- a new sparse-parameter file ---


def write_parameter_file(source: Source, path: Path, *, slots: bool, progress: bool) -> int:
    """Writes a new file with all rows; `slots`: also with the slots. Returns the number of rows.

    Raises:
      TableExistsError: The file exists.
    """
    if path.exists():
        raise TableExistsError(f"{path} exists. Import into a new file, or remove this one first")
    if not path.parent.is_dir():
        raise NotFoundError(f"{path.parent} is not a folder, so {path.name} cannot be written there")
    read_keys(source, f"file {path}", source.facts.key_limit, slots=slots, progress=progress)
    facts = source.facts if slots else source.facts.without_slots()

    def blocks() -> Iterator[Block]:
        with bar(source.at_most, f"write {path.name}", show=progress) as progress_bar:
            for block in source.blocks(slots):
                yield block
                progress_bar.update(len(block.keys))

    return parameter_files.write_content(facts.header(), blocks(), path, n_rows=None, progress=False).rows


# --- a checkpoint ---


def write_checkpoint(source: Source, path: Path, table: str | None, *, slots: bool, progress: bool) -> int:
    """Writes the newest checkpoint of a directory again, with rows of a table replaced and added.

    The new checkpoint has the same step and is newer than the others, which stay. It builds on no other one.

    Raises:
      NotFoundError: There is no whole checkpoint, or it has no such table.
      UnsupportedError: Each machine has a directory of its own (`per_node=True`).
      StateError: The slots are of another optimizer; or a checkpoint was saved meanwhile, and nothing was changed.
      WriterLockedError: Another process is saving to the directory.
    """
    rewriting = compaction.Rewriting.of(
        CheckpointDirectory(path), table, ". Transfer the rows in the job with tsps.transfer, and save"
    )
    checkpoint, number = rewriting.checkpoint, rewriting.number
    stored = StoredRows(checkpoint, number)
    facts = RowFacts.of_header(str(checkpoint.manifest.tables[number]["name"]), stored.info)
    target = f"table {facts.table!r} of checkpoint {checkpoint.path}"
    check_dim(source.name, source.facts.dim, target, facts.dim)
    if slots:
        check_rule(source, target, facts)
    keys = read_keys(source, target, facts.key_limit, slots=slots, progress=progress)
    with rewriting.saving("an import of rows") as save:
        compaction.write(checkpoint, save, blocks={number: _merged(stored, facts, source, keys, slots=slots)})
    return len(keys)


def _merged(stored: StoredRows, facts: RowFacts, source: Source, keys: Keys, *, slots: bool) -> Iterator[Block]:
    """Yields the rows of a checkpoint's table with those of a source in place of theirs.

    Slots that the source lacks, and metadata, stay those of the checkpoint. They are in memory while the rows of the
    source are read.
    """
    planes = [MetadataPlane.from_core(plane) for plane in stored.info["metadata"]]
    keeps = bool(planes) or (bool(facts.widths) and not slots)
    imported = KeySet()
    imported.add([keys])
    kept: list[Block] = []
    for block in stored.blocks():
        replaced = imported.has(block.keys) if imported else np.zeros(len(block.keys), np.bool_)
        if keeps and replaced.any():
            kept.append(block.where(replaced)._replace(rows=np.empty((int(replaced.sum()), 0), np.float32)))
        yield block.where(~replaced)
    old = concatenated(kept) if kept else None
    if old is not None:
        old = old.where(np.argsort(old.keys))
    for block in source.blocks(slots):
        n = len(block.keys)
        values = list(block.slots) if slots else []
        if not slots:
            initial = zip(facts.widths, facts.slot_init, strict=True)
            values = [np.full((n, width), value, np.float32) for width, value in initial]
        metadata: dict[str, Any] = {
            plane.name: use_in(facts.step, n) if plane == USE else plane.full(n) for plane in planes
        }
        if old is not None and len(old.keys):
            at = np.minimum(np.searchsorted(old.keys, block.keys), len(old.keys) - 1)
            was = old.keys[at] == block.keys
            if not slots:
                for value, before in zip(values, old.slots, strict=True):
                    value[was] = before[at[was]]
            for name, plane in metadata.items():
                plane[was] = old.metadata[name][at[was]]
        yield Block(block.keys, block.rows, tuple(values), metadata)


# --- a table ---


def write_table(source: Source, path: Path, *, slots: bool, progress: bool) -> int:
    """Assigns rows of a table that no process writes. A shard takes the rows of its keys. Returns their number.

    Raises:
      WriterLockedError: The job of the table is running.
      StateError: The table has slots of another optimizer.
    """
    with Table.open(path, "r+") as table:
        facts, target = RowFacts.of_header(plain_name(path.name), LiveTable(table).header), f"table {path}"
        check_dim(source.name, source.facts.dim, target, facts.dim)
        if slots and facts.optimizer != "none":
            check_rule(source, target, facts)
        read_keys(source, target, facts.key_limit, slots=slots, progress=progress)
        if slots:
            table.bind_slots(source.facts.optimizer, source.facts.slot_init, "the source has other slots")
        written = 0
        with bar(source.at_most, f"import {facts.table}", show=progress) as progress_bar:
            for block in joined(source.blocks(slots)):
                progress_bar.update(len(block.keys))
                if table.shard is not None:
                    block = block.where(table.shard.has(block.keys))
                table.assign(block.keys, block.rows, block.slots)
                written += len(block.keys)
    return written
