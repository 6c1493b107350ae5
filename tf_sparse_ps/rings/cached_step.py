"""A step of tables of which some have rows on a device. On the job's only rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_ps import _ops

if TYPE_CHECKING:
    from tf_sparse_ps.job.job import Job
    from tf_sparse_ps.rings.sparse_ring import SparseGradient, Update

_HOST = "/CPU:0"


def make(job: Job, step: tf.Tensor, reduced: Sequence[SparseGradient], update: Update) -> tf.Tensor:
    """Makes the step: on the host in one commit, and then on the devices.

    Args:
      job: Of this rank alone.
      step: int64, the step being made.
      reduced: A gradient per key, in the order of the tables.
      update: What makes the step.

    Returns:
      The verdict, uint8[n], that the step is made: where it is not, the error is raised here. No other rank waits.
    """
    caches = [table.cache for table in update.tables]
    parts = [
        None if cache is None else cache.plan(one.keys, one.rows) for cache, one in zip(caches, reduced, strict=True)
    ]
    none, no_keys = tf.constant(0, tf.int64), tf.zeros([0], tf.int64)
    with tf.device(_HOST):
        verdict = _ops.cache_step(
            job.group_path,
            step,
            update.paths,
            update.uuids,
            [one.keys if part is None else part.left_keys for one, part in zip(reduced, parts, strict=True)],
            [one.rows if part is None else part.left_gradients for one, part in zip(reduced, parts, strict=True)],
            update.hyper,
            [none if cache is None else cache.number for cache in caches],
            [none if part is None else part.plan.plan for part in parts],
            [no_keys if part is None else part.not_finite for part in parts],
            [no_keys if part is None else part.plan.victim_keys for part in parts],
            [[] if part is None else part.victims for part in parts],
        )
        made = _ops.check_step(step, verdict)
    moved: list[tf.Operation] = []
    with tf.control_dependencies([made]):
        for cache, part, hyper in zip(caches, parts, update.hyper, strict=True):
            if cache is not None:
                moved += cache.move(part, hyper, step)
    with tf.control_dependencies([made, *moved]):
        for cache in caches:
            if cache is not None:
                cache.flush_after(step)
        return tf.identity(verdict)
