"""A step of tables of which some have rows on a device. On the job's only rank."""

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
    """Makes the step: on the host in one commit, and then on the devices.

    Args:
      job: Of this rank alone.
      step: int64, the step being made.
      reduced: A gradient per key, in the order of the tables; of a table with rows on several devices one for each.
      update: What makes the step, with a table for each gradient.

    Returns:
      The verdict, uint8[n], that the step is made: where it is not, the error is raised here. No other rank waits.
    """
    tables = _tables(update, reduced)
    with tf.device(_HOST):
        verdict = _ops.cache_step(
            job.group_path,
            step,
            [one.table.path_tensor for one in tables],
            [one.table.uuid for one in tables],
            [one.joined(lambda part: part.left_keys, one.gradient.keys) for one in tables],
            [one.joined(lambda part: part.left_gradients, one.gradient.rows) for one in tables],
            [one.hyper for one in tables],
            update.optimizer,
            [one.stacked([store.number for store in one.stores]) for one in tables],
            [one.stacked([part.plan.plan for part in one.parts]) for one in tables],
            [one.joined(lambda part: part.not_finite) for one in tables],
            [one.joined(lambda part: part.plan.victim_keys) for one in tables],
            [[_joined(plane) for plane in zip(*(part.victims for part in one.parts), strict=True)] for one in tables],
        )
        made = _ops.check_step(step, verdict)
    moved: list[tf.Operation] = []
    with tf.control_dependencies([made]):
        for one in tables:
            for store, part in zip(one.stores, one.parts, strict=True):
                moved += store.move(part, one.hyper, step)
    with tf.control_dependencies([made, *moved]):
        for one in tables:
            if (cache := cache_of(one.table)) is not None:
                cache.flush_after(step)
        return tf.identity(verdict)


@dataclasses.dataclass(frozen=True)
class _OfTable:
    """What a step does to one table.

    Attributes:
      table, hyper: Its binding, and its rule's hyperparameters.
      gradient: Of all keys, of a table without rows on a device.
      stores, parts: The devices' rows, and what the step does to each.
    """

    table: TableBinding
    hyper: tf.Tensor
    gradient: SparseGradient
    stores: list[Any]
    parts: list[Any]

    def joined(self, what: Callable[[Any], tf.Tensor], without: tf.Tensor | None = None) -> tf.Tensor:
        """What all parts have of something, one behind the other; where there are none, `without`, or no keys."""
        if self.parts:
            return _joined([what(part) for part in self.parts])
        return tf.zeros([0], tf.int64) if without is None else without

    @staticmethod
    def stacked(numbers: list[tf.Tensor]) -> tf.Tensor:
        """int64[n]."""
        return tf.stack(numbers) if numbers else tf.zeros([0], tf.int64)


def _tables(update: Update, reduced: Sequence[SparseGradient]) -> list[_OfTable]:
    found: dict[str, _OfTable] = {}
    for table, hyper, gradient in zip(update.tables, update.hyper, reduced, strict=True):
        cache = cache_of(table)
        stores = [] if cache is None else cache.stores
        one = found.setdefault(table.path, _OfTable(table, hyper, gradient, stores, []))
        if stores:
            one.parts.append(stores[len(one.parts)].plan(gradient.keys, gradient.rows))
    return list(found.values())


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)
