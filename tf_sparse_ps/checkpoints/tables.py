"""The tables of a checkpoint: a sparse-parameter file each, of all nodes' rows, with slots.

A replicated table is written by rank 0 from its node, as of the state in which it was captured; a sharded one by all
ranks together, rank 0 writes. An increment has the rows that were written since a mark, and the keys that were erased.
Each node's leader reads the files again, and keeps what its node has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps import _table, job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.checkpoints import captured, fault_points
from tf_sparse_ps.checkpoints.captured import Captured
from tf_sparse_ps.checkpoints.directory import Checked
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import DamagedFileError, NotFoundError, StateError
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers import rows
from tf_sparse_ps.layers.sharded_content import ShardedContent
from tf_sparse_ps.layers.table_layer import TableLayer
from tf_sparse_ps.table import newer_rows, parameter_files, table
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.table import Block

_WRITER = 0
_JOINED_BYTES = 4 << 20  # of rows, without slots


def of(model: Any) -> list[TableBinding]:
    """The tables of a model's layers, in the order of its layers, each once."""
    every = [one for layer in _keras.layers_of(model, TableLayer) for one in layer.bindings]
    return list({one.ordinal: one for one in every}.values())


def committed_step() -> int:
    """The step of this node's tables."""
    return job.current().group.committed_step()


def facts(binding: TableBinding, number: int) -> dict[str, Any]:
    """What a manifest says of a table; `content` and `erased` are known when it has been written."""
    config = binding.config
    name = re.sub(r"[^A-Za-z0-9_-]", "_", config.name)[:100]
    return {
        "file": f"t{number:04d}-{name}.tfsps",
        "name": config.name,
        "id": binding.uuid,
        "content": "all",
        "erased": None,
        "rows_checksum": None,
        "dim": config.dim,
        "key_limit": config.key_limit,
        "dtype": config.dtype,
        "placement": binding.placement,
    }


def mark_changes(bindings: Sequence[TableBinding]) -> dict[str, str]:
    """Begins to note what changes. Between two steps, every rank calls it; leaders act.

    Returns:
      On leaders a mark of each table, by its uuid, as `Table.mark_changes`.
    """
    this_job = job.current()
    if not bindings or not this_job.is_leader:
        return {}
    for binding in bindings:
        newer_rows.flush(binding.path)
    with eager_ops(f"marking changes of {this_job.group_path}") as _ops:
        generation = int(_ops.mark_changes(this_job.group_path))
    return {binding.uuid: f"{binding.uuid}:{generation}" for binding in bindings}


def capture(
    bindings: Sequence[TableBinding], facts: Sequence[dict[str, Any]], since: Mapping[str, str], step: int
) -> list[Captured]:
    """Captures replicated tables on rank 0. Between two steps.

    Args:
      bindings: Of the tables.
      facts: Of each.
      since: For those of which the changes alone are wanted the mark, by their uuids.
      step: That their rows are expected to be of.

    Raises:
      StateError: They are of another step.
    """
    if not bindings:
        return []
    readers = [binding.reader() for binding in bindings]
    # As many images as there are rows, if all of them are trained meanwhile.
    most = max(1 << 30, sum(int(reader.stats()["bytes"]) for reader in readers))
    scans = table.scan(
        {reader: since.get(binding.uuid) for reader, binding in zip(readers, bindings, strict=True)}, max_bytes=most
    )
    found = [
        Captured(one, scans[reader], parameter_files.header(reader, scans[reader], shard=None, slots=True))
        for one, reader in zip(facts, readers, strict=True)
    ]
    for binding, reader in zip(bindings, readers, strict=True):
        if scans[reader].step != step:
            for one in found:
                one.close()
            _refuse_step(binding, scans[reader].step, step)
    return found


def write_sharded(
    binding: TableBinding,
    folder: Path | None,
    facts: dict[str, Any],
    since: str | None,
    step: int,
    stamp: Mapping[str, Any],
    ranks: Collectives,
) -> list[str]:
    """Writes a sharded table. Every rank calls it, at the same time; rank 0 writes.

    Args:
      binding: Of the table.
      folder: Of the checkpoint, on rank 0.
      facts: Of the table, which become complete.
      since: The mark of this node, on its leader, if changes alone are wanted.
      step: That its rows are expected to be of.
      stamp: As of `Captured.write`.
      ranks: The job's.

    Returns:
      The names of the files.

    Raises:
      StateError: They are of another step; or another rank has failed.
      OSError: From the file system, on rank 0.
    """
    with ShardedContent(binding, "saving a checkpoint", slots=True, to=_WRITER, since=since) as content:
        if content.step != step:
            _refuse_step(binding, content.step, step)
        if ranks.rank == _WRITER:
            assert folder is not None
            header = parameter_files.header(binding.reader(), content, shard=None, slots=True)
            return list(captured.write(content, header, folder, facts, stamp, progress=True))
        for _ in content:  # this node's rows are on their way
            pass
    return []


def _refuse_step(binding: TableBinding, found: int, step: int) -> None:
    raise StateError(
        f"table {binding.config.name!r} is at step {found}, the other tables are at {step}: something trains it "
        "beside this job's ranks"
    )


class Stored:
    """The tables of a checkpoint."""

    def __init__(self, checkpoint: Checked) -> None:
        """Reads nothing. `checkpoint`: With what it builds on."""
        self._checkpoint = checkpoint
        self._folder, self._facts = checkpoint.path, checkpoint.manifest.tables
        self._step = checkpoint.manifest.table_step
        self._damage: Exception | None = None

    def check(self, bindings: Sequence[TableBinding]) -> None:
        """Compares with the tables that there are, and reads what the files say of themselves.

        Raises:
          ValueError: The model has other tables.
          StateError: A file is of another step than the checkpoint.
          DamagedFileError, NotFoundError: A file is not what it should be.
        """
        if len(bindings) != len(self._facts):
            names = [one["name"] for one in self._facts]
            raise ValueError(
                f"the model has {len(bindings)} tables, {[one.config.name for one in bindings]}, and checkpoint "
                f"{self._folder} has {len(names)}, {names}. Build the model that was saved; one that is built by "
                "its first batch must be called on one before"
            )
        for number, (binding, stored) in enumerate(zip(bindings, self._facts, strict=True)):
            own = {"dim": binding.config.dim, "key_limit": binding.config.key_limit}
            if own != (found := {name: stored[name] for name in own}):
                raise ValueError(
                    f"table {binding.config.name!r} has {own}, table {stored['name']!r} of checkpoint {self._folder} "
                    f"has {found}"
                )
            StoredRows(self._checkpoint, number)

    def restore(self, bindings: Sequence[TableBinding]) -> None:
        """Makes the tables what was stored. Every rank calls it; leaders act, and then call `check_read`.

        A leader that finds damage stops reading: others wait for it to end, not to fail.
        """
        for number, binding in enumerate(bindings):
            self._restore(binding, StoredRows(self._checkpoint, number))
            fault_points.reach("table_restored")

    def check_read(self) -> None:
        """Raises what was found in reading rows: DamagedFileError, NotFoundError, or OSError."""
        if self._damage is not None:
            raise self._damage

    def set_step(self, ranks: Collectives) -> None:
        """Makes the step of the tables that of the checkpoint. Every rank calls it; leaders act."""
        this_job = job.current()
        if this_job.is_leader:
            with eager_ops(f"setting the step of {this_job.group_path}") as _ops:
                _ops.set_step(this_job.group_path, tf.constant(self._step, tf.int64))
        ranks.barrier("tsps.checkpoint.step")
        this_job.step.assign(self._step)
        fault_points.reach("step_set")

    def _restore(self, binding: TableBinding, stored: StoredRows) -> None:
        info = stored.info
        rule = info["optimizer"]
        meta = {
            "dim": info["dim"],
            "key_limit": info["key_limit"] or None,
            "optimizer": rule["kind"],
            "slot_init": [float(value) for value in rule["slot_init"]],
            "initializer": info["initializer"],
        }

        def blocks(carried: bool) -> Iterator[Block]:
            if self._damage is not None:
                return
            with bar(stored.at_most, f"restore {binding.config.name}") as shown:
                try:
                    for block in _read_ahead(_joined(stored.blocks(carried))):
                        yield block
                        shown.update(len(block.keys))
                        fault_points.reach("rows_restored")
                except (DamagedFileError, NotFoundError, OSError) as error:
                    self._damage = error

        widths = [] if rule["kind"] == "none" else _table.slot_widths(rule["kind"], info["dim"])
        rows.replace(binding, meta, widths, blocks)
        # All nodes have read the file: none needs to be given what another one has written.
        binding.explicit = False


def _read_ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """The blocks; the next one is read while one is used."""
    with ThreadPoolExecutor(1, "tsps-restore") as thread:
        reading = thread.submit(next, blocks, None)
        while (block := reading.result()) is not None:
            reading = thread.submit(next, blocks, None)
            yield block


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same rows in fewer blocks, without metadata: each is a mutation of the table. Three are in memory."""
    parts: list[Block] = []

    def join() -> Block:
        slots = tuple(np.concatenate(one) for one in zip(*(part.slots for part in parts), strict=True))
        return Block(
            np.concatenate([one.keys for one in parts]), np.concatenate([one.rows for one in parts]), slots, {}
        )

    for block in blocks:
        parts.append(block)
        if sum(len(one.keys) for one in parts) >= _JOINED_BYTES // (4 * block.rows.shape[1]):
            yield join()
            parts.clear()
    if parts:
        yield join()
