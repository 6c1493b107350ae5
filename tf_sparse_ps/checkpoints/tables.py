"""The tables of a checkpoint: a sparse-parameter file each, of all nodes' rows, with slots.

A replicated table is written by rank 0 from its node; a sharded one by all ranks together, rank 0 writes. Each node's
leader reads the file again, and keeps what its node has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _table, job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers import rows
from tf_sparse_ps.layers.sharded_content import ShardedContent
from tf_sparse_ps.layers.table_layer import TableLayer
from tf_sparse_ps.table import parameter_files
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.table import Block

_WRITER = 0


def of(model: Any) -> list[TableBinding]:
    """The tables of a model's layers, in the order of its layers, each once."""
    every = [one for layer in _keras.layers_of(model, TableLayer) for one in layer.bindings]
    return list({one.ordinal: one for one in every}.values())


def committed_step() -> int:
    """The step of this node's tables."""
    return job.current().group.committed_step()


def facts(binding: TableBinding, number: int) -> dict[str, Any]:
    """What a manifest says of a table."""
    config = binding.config
    name = re.sub(r"[^A-Za-z0-9_-]", "_", config.name)[:100]
    return {
        "file": f"t{number:04d}-{name}.tfsps",
        "name": config.name,
        "dim": config.dim,
        "key_limit": config.key_limit,
        "dtype": config.dtype,
        "placement": binding.placement,
    }


def write(binding: TableBinding, path: Path | None, step: int, ranks: Collectives) -> None:
    """Writes a table. Of a sharded one every rank calls it, at the same time; of a replicated one rank 0 alone acts.

    Args:
      binding: Of the table.
      path: The file, on rank 0.
      step: That its rows are expected to be of.
      ranks: The job's.

    Raises:
      StateError: They are of another step; or another rank has failed.
      OSError: From the file system, on rank 0.
    """
    writes = ranks.rank == _WRITER
    if binding.placement == "replicated" and not writes:
        return
    call = "saving a checkpoint"
    content: Any = (
        binding.reader().scan(slots=True)
        if binding.placement == "replicated"
        else ShardedContent(binding, call, slots=True, to=_WRITER)
    )
    with content:
        if content.step != step:
            raise StateError(
                f"table {binding.config.name!r} is at step {content.step}, the other tables are at {step}: something "
                "trains it beside this job's ranks"
            )
        if writes:
            assert path is not None
            parameter_files.write(binding.reader(), content, path, shard=None, slots=True)
        else:
            for _ in content:  # this node's rows are on their way
                pass


class Stored:
    """The tables of a checkpoint."""

    def __init__(self, folder: Path, facts: Sequence[Mapping[str, Any]], step: int) -> None:
        """Reads nothing.

        Args:
          folder: Of the checkpoint.
          facts: Of each table.
          step: That all of them are expected to be of.
        """
        self._folder, self._facts, self._step = folder, facts, step

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
        for binding, stored in zip(bindings, self._facts, strict=True):
            own = {"dim": binding.config.dim, "key_limit": binding.config.key_limit}
            if own != (found := {name: stored[name] for name in own}):
                raise ValueError(
                    f"table {binding.config.name!r} has {own}, table {stored['name']!r} of checkpoint {self._folder} "
                    f"has {found}"
                )
            path = self._folder / stored["file"]
            step = _table.ParameterFileReader(str(path)).info()["step"]
            if step != self._step:
                raise StateError(
                    f"{path} has the rows of table {stored['name']!r} at step {step}, and the checkpoint's other "
                    f"tables and dense weights are of step {self._step}: they are not of one step"
                )

    def restore(self, bindings: Sequence[TableBinding]) -> None:
        """Makes the tables, and the step of the node's group, what was stored. Every rank calls it; leaders act."""
        for binding, stored in zip(bindings, self._facts, strict=True):
            _restore(binding, self._folder / stored["file"])

    def set_step(self, ranks: Collectives) -> None:
        """Makes the step of the tables that of the checkpoint. Every rank calls it; leaders act."""
        this_job = job.current()
        if this_job.is_leader:
            with eager_ops(f"setting the step of {this_job.group_path}") as _ops:
                _ops.set_step(this_job.group_path, tf.constant(self._step, tf.int64))
        ranks.barrier("tsps.checkpoint.step")
        this_job.step.assign(self._step)


def _restore(binding: TableBinding, path: Path) -> None:
    reader = _table.ParameterFileReader(str(path))
    info = reader.info()
    rule = info["optimizer"]
    meta = {
        "dim": info["dim"],
        "key_limit": info["key_limit"] or None,
        "optimizer": rule["kind"],
        "slot_init": [float(value) for value in rule["slot_init"]],
        "initializer": info["initializer"],
    }

    def blocks(carried: bool) -> Iterator[Block]:
        with bar(info["n_rows"], f"restore {binding.config.name}") as shown:
            for number in range(reader.blocks()):
                keys, values, slots, _ = reader.read_block(number, carried)
                yield Block(keys, values, tuple(slots), {})
                shown.update(len(keys))

    widths = [] if rule["kind"] == "none" else _table.slot_widths(rule["kind"], info["dim"])
    rows.replace(binding, meta, widths, blocks)
    # All nodes have read the file: none needs to be given what another one has written.
    binding.explicit = False
