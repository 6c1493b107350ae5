"""Pulls the rows of sharded tables for the next batch while the current batch trains, if ranks look ahead.

After its lookups, every step pulls rows for the next batch, by a fixed number of collectives, the same on all ranks. An
owner sends no row that the current step may change. The lookup of the next batch pulls such a row itself. So results do
not depend on the batches that were announced (`cc/core/exchange/rows_ahead.h`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.reduction import node_exchange, row_pull
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient

if TYPE_CHECKING:
    from tf_sparse_ps.job.job import Job
    from tf_sparse_ps.job.table_binding import TableBinding


def sharded(tables: Sequence[TableBinding]) -> list[int]:
    """Returns the positions of the sharded tables."""
    return [t for t, table in enumerate(tables) if table.placement == "sharded"]


def fetch(job: Job, tables: Sequence[TableBinding], name: str) -> list[tf.Tensor]:
    """Pulls the rows that the next batch needs and the current step does not change. Every rank calls it in every step.

    Args:
      job: The rank's job.
      tables: The tables of the step.
      name: The name of the operations.

    Returns:
      One tensor, which exists when the rows have arrived. Empty: no table is sharded.
    """
    sharded_tables = [tables[t] for t in sharded(tables)]
    if not sharded_tables:
        return []
    by_wire: dict[str, list[TableBinding]] = {}
    for table in sharded_tables:
        assert isinstance(table.config.placement, Sharded)
        by_wire.setdefault(table.config.placement.wire, []).append(table)

    def pull() -> tf.Tensor:
        kept: list[tf.Tensor] = []
        for wire, wire_tables in by_wire.items():
            with tf.control_dependencies(kept):
                kept = _pull(job, wire_tables, f"{name}.ahead.{wire}", wire)
        with tf.control_dependencies(kept):
            return tf.constant(True)

    order = node_exchange.of(job).pulls
    with tf.control_dependencies([order.read_value()]):  # after all earlier lookups
        looking = _ops.pulls_look_ahead(job.group_path)
    pulled = tf.cond(looking, pull, lambda: tf.constant(False))
    with tf.control_dependencies([pulled]):
        order.assign_add(1)
    return [pulled]


def _pull(job: Job, tables: Sequence[TableBinding], name: str, wire: str) -> list[tf.Tensor]:
    first = tables[0]
    pull = _ops.Pull(name, first.nodes, first.node, wire, "next")
    paths, uuids = [table.path_tensor for table in tables], [table.uuid for table in tables]
    no_keys = [tf.zeros([0], tf.int64) for _ in tables]
    asked = pull.ask(no_keys, paths, uuids, job.timeout_s)
    named = paths, uuids, [table.config.dim for table in tables]
    return row_pull.rows_for(pull, asked, no_keys, named, node_exchange.of(job).cross_node_group(), name)


def objections(job: Job, tables: Sequence[TableBinding], gradients: Sequence[SparseGradient]) -> list[tf.Tensor]:
    """Returns the objections of this rank to a step: verdicts, uint8[n].

    Args:
      job: The rank's job.
      tables: The tables of the step.
      gradients: This rank's gradients, one per table.
    """
    indices = sharded(tables)
    if not indices:
        return []
    keys = [gradients[t].keys for t in indices]
    paths, uuids = [tables[t].path_tensor for t in indices], [tables[t].uuid for t in indices]
    with tf.control_dependencies([node_exchange.of(job).pulls.read_value()]):
        return [_ops.check_looked_up(keys, paths, uuids)]


def step_made(step: tf.Tensor, tables: Sequence[TableBinding]) -> tf.Tensor:
    """Lets later lookups use the rows that `fetch` has pulled. Every rank calls it after a step; returns `step`."""
    sharded_tables = [tables[t] for t in sharded(tables)]
    if not sharded_tables:
        return step
    return _ops.pull_step_made(
        step, [table.path_tensor for table in sharded_tables], [table.uuid for table in sharded_tables]
    )
