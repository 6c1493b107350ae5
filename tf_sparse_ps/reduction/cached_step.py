"""Makes a step of tables, some of which have rows on a device. Only in a job of one rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.job.cached_binding import cache_of

if TYPE_CHECKING:
    from tf_sparse_ps.job.job import Job
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.reduction.sparse_gradient import SparseGradient, Update

_HOST = "/CPU:0"


def make(job: Job, step: tf.Tensor, reduced: Sequence[SparseGradient], update: Update) -> tf.Tensor:
    """Makes the step on the host, in one commit, and then on the devices.

    Args:
      job: The job, which has one rank.
      step: The number of the step, int64.
      reduced: One gradient per key, in the order of the tables. A table with rows on several devices has one gradient
        for each device.
      update: The update of the tables, with a table for each gradient.

    Returns:
      The verdict that the step is made, uint8[n]. If the step fails, this function raises the error, because no other
      rank waits for a verdict.
    """
    changes = _table_changes(update, reduced)
    with tf.device(_HOST):
        verdict = _ops.cache_step(
            job.group_path,
            step,
            [change.table.path_tensor for change in changes],
            [change.table.uuid for change in changes],
            [change.joined(lambda part: part.left_keys, change.gradient.keys) for change in changes],
            [change.joined(lambda part: part.left_gradients, change.gradient.rows) for change in changes],
            [change.hyper for change in changes],
            update.optimizer,
            [change.stacked([store.number for store in change.stores]) for change in changes],
            [change.stacked([part.plan.plan for part in change.parts]) for change in changes],
            [change.joined(lambda part: part.not_finite) for change in changes],
            [change.joined(lambda part: part.plan.victim_keys) for change in changes],
            [[_joined(plane) for plane in zip(*(part.victims for part in c.parts), strict=True)] for c in changes],
        )
        committed = _ops.check_step(step, verdict)
    moves: list[tf.Operation] = []
    with tf.control_dependencies([committed]):
        for change in changes:
            for store, part in zip(change.stores, change.parts, strict=True):
                moves += store.move(part, change.hyper, step)
    with tf.control_dependencies([committed, *moves]):
        for change in changes:
            if (cache := cache_of(change.table)) is not None:
                cache.flush_after(step)
        return tf.identity(verdict)


@dataclasses.dataclass(frozen=True)
class _TableChange:
    """The change of one table in a step.

    Attributes:
      table: The table.
      hyper: The hyperparameters of its update rule.
      gradient: The gradient of all keys, if the table has no rows on a device.
      stores: The rows on each device.
      parts: The plan of the step for each device.
    """

    table: TableBinding
    hyper: tf.Tensor
    gradient: SparseGradient
    stores: list[Any]
    parts: list[Any]

    def joined(self, field: Callable[[Any], tf.Tensor], default: tf.Tensor | None = None) -> tf.Tensor:
        """Concatenates a field of all parts. Without parts: returns `default`, or no keys if it is None."""
        if self.parts:
            return _joined([field(part) for part in self.parts])
        return tf.zeros([0], tf.int64) if default is None else default

    @staticmethod
    def stacked(numbers: list[tf.Tensor]) -> tf.Tensor:
        """Stacks numbers to int64[n]."""
        return tf.stack(numbers) if numbers else tf.zeros([0], tf.int64)


def _table_changes(update: Update, reduced: Sequence[SparseGradient]) -> list[_TableChange]:
    changes: dict[str, _TableChange] = {}
    for table, hyper, gradient in zip(update.tables, update.hyper, reduced, strict=True):
        cache = cache_of(table)
        stores = [] if cache is None else cache.stores
        change = changes.setdefault(table.path, _TableChange(table, hyper, gradient, stores, []))
        if stores:
            change.parts.append(stores[len(change.parts)].plan(gradient.keys, gradient.rows))
    return list(changes.values())


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)
