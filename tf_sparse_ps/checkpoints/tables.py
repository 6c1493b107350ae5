"""The tables of a checkpoint: sparse-parameter files with slots, one of each table and node.

Each node's leader writes one, as of the state in which it was captured: the rows that the node has of a sharded table,
and of a replicated one those of the keys that a sharded one would have there. An increment has the rows that were
written since a mark, and the keys that were erased. Each node's leader reads the files again, and keeps what its node
has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps import _table, job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.checkpoints import fault_points, manifest
from tf_sparse_ps.checkpoints.captured import Captured
from tf_sparse_ps.checkpoints.directory import Checked
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import DamagedFileError, NotFoundError, StateError, UnsupportedError
from tf_sparse_ps.job.table_binding import TableBinding, number_of
from tf_sparse_ps.layers import rows
from tf_sparse_ps.layers.table_layer import TableLayer
from tf_sparse_ps.table import newer_rows, parameter_files, several_tables
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block
from tf_sparse_ps.table.shards import describe

_JOINED_BYTES = 4 << 20  # of rows, without slots


def of(model: Any) -> list[TableBinding]:
    """The tables of a model's layers, in the order of its layers, each once."""
    every = [one for layer in _keras.layers_of(model, TableLayer) for one in layer.bindings]
    return list({one.ordinal: one for one in every}.values())


def committed_step() -> int:
    """The step of this node's tables."""
    return job.current().group.committed_step()


def facts(binding: TableBinding) -> dict[str, Any]:
    """What a manifest says of a table, but for `parts`, which are known when they have been written."""
    config, index_seed = binding.config, int(binding.reader().stats()["index_seed"])
    return {
        "name": config.name,
        "id": binding.uuid,
        "dim": config.dim,
        "key_limit": config.key_limit,
        "dtype": config.dtype,
        "placement": binding.placement,
        "index_seed": index_seed,
    }


def mark_changes(bindings: Sequence[TableBinding]) -> dict[str, str]:
    """Begins to note what changes. Between two steps, on leaders.

    Returns:
      A mark of each table, by its uuid, as `Table.mark_changes`.
    """
    if not bindings:
        return {}
    this_job = job.current()
    for binding in bindings:
        newer_rows.flush(binding.path)
    with eager_ops(f"marking changes of {this_job.group_path}") as _ops:
        generation = int(_ops.mark_changes(this_job.group_path))
    return {binding.uuid: binding.reader().mark(generation) for binding in bindings}


def capture(bindings: Sequence[TableBinding], since: Mapping[str, str], step: int, *, split: bool) -> list[Captured]:
    """Captures what this node is to write. Between two steps, on leaders.

    Args:
      bindings: Of all tables, in the model's order.
      since: For those of which the changes alone are wanted the mark, by their uuids.
      step: That their rows are expected to be of.
      split: Of replicated tables each node writes the keys that a hash gives it. Else all.

    Raises:
      StateError: They are of another step.
    """
    if not bindings:
        return []
    readers = [binding.reader() for binding in bindings]
    # As many images as there are rows, if all of them are trained meanwhile.
    most = max(1 << 30, sum(int(reader.stats()["bytes"]) for reader in readers))
    scans = several_tables.scan(
        {reader: since.get(binding.uuid) for reader, binding in zip(readers, bindings, strict=True)}, max_bytes=most
    )
    found = []
    for number, (binding, reader) in enumerate(zip(bindings, readers, strict=True)):
        scan, shard = scans[reader], binding.shard if split or binding.placement == "sharded" else None
        all_come = scan.erased is None
        if shard is not None and binding.placement == "replicated":
            scan.take_shard(shard)
            all_come = False
        file = manifest.name_of_file(number, binding.config.name, None if shard is None else shard.node)
        header = parameter_files.header(reader, scan, shard=shard, slots=True)
        found.append(Captured(file, scan, header, n_rows=len(scan) if all_come else None))
    for binding, reader in zip(bindings, readers, strict=True):
        if scans[reader].step != step:
            for one in found:
                one.close()
            raise StateError(
                f"table {binding.config.name!r} is at step {scans[reader].step}, the other tables are at {step}: "
                "something trains it beside this job's ranks"
            )
    return found


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
        names = [one.config.name for one in bindings]
        if names != (theirs := [one["name"] for one in self._facts]) and sorted(names) == sorted(theirs):
            raise ValueError(
                f"the model's tables are {names}, those of checkpoint {self._folder} are {theirs}: rows go by the "
                "order of layers, which is another one now. Build the model as it was saved"
            )
        for number, (binding, stored) in enumerate(zip(bindings, self._facts, strict=True)):
            own = {"dim": binding.config.dim, "key_limit": binding.config.key_limit}
            if own != (found := {name: stored[name] for name in own}):
                raise ValueError(
                    f"table {binding.config.name!r} has {own}, table {stored['name']!r} of checkpoint {self._folder} "
                    f"has {found}: build the model that was saved, or begin anew in another directory"
                )
            self._rows(binding, number)

    def restore(self, bindings: Sequence[TableBinding]) -> None:
        """Makes the tables what was stored. Every rank calls it; leaders act, and then call `check_read`.

        A leader that finds damage stops reading: others wait for it to end, not to fail.
        """
        for number, binding in enumerate(bindings):
            self._restore(binding, self._rows(binding, number), self._facts[number].get("index_seed"))
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

    def _rows(self, binding: TableBinding, number: int) -> StoredRows:
        wanted = binding.shard if binding.placement == "sharded" else None
        found = StoredRows(self._checkpoint, number, wanted)
        if found.shard not in (None, wanted):
            raise UnsupportedError(
                f"checkpoint {self._folder} has of table {binding.config.name!r} {describe(found.shard)}, and here it "
                f"is to be {describe(wanted)}: what nodes have saved to a directory each (per_node=True) is restored "
                "by as many, in the same order, with the same placement"
            )
        return found

    def _restore(self, binding: TableBinding, stored: StoredRows, index_seed: int | None) -> None:
        info = stored.info
        rule = info["optimizer"]
        meta = {
            "dim": info["dim"],
            "key_limit": info["key_limit"] or None,
            "optimizer": rule["kind"],
            "slot_init": [float(value) for value in rule["slot_init"]],
            "initializer": info["initializer"],
            "trained_by": info["trained_by"],
        }
        if index_seed is not None:
            binding.take_index_seed(index_seed)

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
        what = number_of("restored", self._folder.name, self._step, binding.ordinal)
        rows.replace(binding, meta, widths, blocks, what)
        binding.set_trained_by(*info["trained_by"])  # the job's optimizer becomes that of the checkpoint, too
        # All nodes have read the file: none needs to be given what another one has written.
        binding.agree(0, what)


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
