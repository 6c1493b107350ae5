"""Rows of the next batch of sharded tables travel while the batch before it trains, where ranks look ahead.

Every step carries the exchange for the batch behind it, once all its own look-ups are made: a fixed number of
collectives, the same on all ranks. An owner sends no row that the step at hand may change; who needs one of those
asks for it when it looks it up. So nothing depends on what was announced (`cc/core/exchange/rows_ahead.h`).
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
    """Positions of the tables that are sharded."""
    return [t for t, table in enumerate(tables) if table.placement == "sharded"]


def fetch(job: Job, tables: Sequence[TableBinding], name: str) -> list[tf.Tensor]:
    """Pulls what the next batch needs and the step at hand leaves alone. Every rank calls it in every step.

    Args:
      job: The rank's job.
      tables: Of the step.
      name: Of the operations.

    Returns:
      What is there when the rows are: one tensor, or none of a step without sharded tables.
    """
    own = [tables[t] for t in sharded(tables)]
    if not own:
        return []
    by_wire: dict[str, list[TableBinding]] = {}
    for table in own:
        assert isinstance(table.config.placement, Sharded)
        by_wire.setdefault(table.config.placement.wire, []).append(table)

    def pull() -> tf.Tensor:
        kept: list[tf.Tensor] = []
        for wire, some in by_wire.items():
            with tf.control_dependencies(kept):
                kept = _pull(job, some, f"{name}.ahead.{wire}", wire)
        with tf.control_dependencies(kept):
            return tf.constant(True)

    order = node_exchange.of(job).pulls
    with tf.control_dependencies([order.read_value()]):  # after all look-ups before it
        looking = _ops.pulls_look_ahead(job.group_path)
    pulled = tf.cond(looking, pull, lambda: tf.constant(False))
    with tf.control_dependencies([pulled]):
        order.assign_add(1)
    return [pulled]


def _pull(job: Job, tables: Sequence[TableBinding], name: str, wire: str) -> list[tf.Tensor]:
    first = tables[0]
    pull = _ops.Pull(name, first.nodes, first.node, wire, "next")
    paths, uuids = [one.path_tensor for one in tables], [one.uuid for one in tables]
    nothing = [tf.zeros([0], tf.int64) for _ in tables]
    asked = pull.ask(nothing, paths, uuids, job.timeout_s)
    named = paths, uuids, [one.config.dim for one in tables]
    return row_pull.rows_for(pull, asked, nothing, named, node_exchange.of(job).cross_node_group(), name)


def objections(job: Job, tables: Sequence[TableBinding], gradients: Sequence[SparseGradient]) -> list[tf.Tensor]:
    """Returns the objections of this rank to a step: verdicts, uint8[n].

    Args:
      job: The rank's job.
      tables: Of the step.
      gradients: This rank's, one per table.
    """
    own = sharded(tables)
    if not own:
        return []
    keys = [gradients[t].keys for t in own]
    with tf.control_dependencies([node_exchange.of(job).pulls.read_value()]):
        return [_ops.check_looked_up(keys, [tables[t].path_tensor for t in own], [tables[t].uuid for t in own])]


def step_made(step: tf.Tensor, tables: Sequence[TableBinding]) -> tf.Tensor:
    """A step is made: look-ups from now on use the rows that `fetch` has pulled. On every rank; returns `step`."""
    own = [tables[t] for t in sharded(tables)]
    if not own:
        return step
    return _ops.pull_step_made(step, [one.path_tensor for one in own], [one.uuid for one in own])
