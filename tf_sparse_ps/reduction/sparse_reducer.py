"""`SparseReducer`: the (key, gradient) sets of all ranks become one gradient per key.

A key's final gradient is the sum over ranks divided by the number of ranks in which the key occurred ("frequency"), by
the number of ranks ("average"), or not at all ("sum"). "Occurred" is per rank and step: a rank that met a key in
several places of its batch, or in several calls of a layer, adds its gradients up first and counts once.

Sums are made in rank order in float32, so that whoever merges the same sets gets the same bits.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.reduction import cached_step
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient, Update, as_gradients, of_one_rank, unique

if TYPE_CHECKING:
    from tf_sparse_ps.job.job import Job

REDUCTIONS = ("frequency", "average", "sum")


class SparseReducer(abc.ABC):
    """Makes one gradient per key and table of all ranks' gradients, and a step of the tables of those.

    A step is made on all nodes or on none. `apply` and `apply_reduced` return the verdict, uint8[n], the same on all
    ranks, for `_ops.check_step`, when it is certain; the leaders then write beside what follows.
    """

    def __init__(self, job: Job) -> None:
        """`job`: of this process."""
        self._job = job

    @abc.abstractmethod
    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient]:
        """Every rank calls it, in a step.

        Args:
          gradients: This rank's, in an order of tables that is the same on all ranks.
          name: Of the operation.
          step: int64, the step being made.

        Returns:
          The reduced gradients on the leader of every node, the same bits on all of them; no rows on other ranks, once
          they have done their part.
        """

    @abc.abstractmethod
    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """`reduce`, and the leaders make a step of what comes out of it."""

    def apply_reduced(self, reduced: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """The leaders make a step of what `reduce` returned. Every rank calls it."""
        if any(cache_of(table) is not None for table in update.tables):
            return cached_step.make(self._job, step, reduced, update)
        job, keys, rows = self._job, [one.keys for one in reduced], [one.rows for one in reduced]
        args = update.paths, update.uuids, keys, rows, update.hyper, update.optimizer
        if len(job.leaders) == 1:
            return _ops.make_step(job.group_path, step, job.timeout_s, *args, update.digest, operation=name)
        if job.is_leader:
            return self._decide(_ops.prepare_step(job.group_path, step, *args, update.voters), name, update)
        with tf.control_dependencies(rows):
            return self._decide(tf.constant(list(_ops.NO_OBJECTIONS), tf.uint8), name, update)

    def _decide(self, verdict: tf.Tensor, name: str, update: Update) -> tf.Tensor:
        """Exchanges the objections and statements of all ranks on several nodes, in one small collective per step."""
        with tf.control_dependencies([verdict]):  # once all look-ups of the step are made
            statement = _ops.statement(self._job.group_path, update.digest)
        own = tf.concat([*update.objections, verdict, statement], 0)
        (verdicts,) = self._job.collectives.allgather([own], f"{name}.verdict")
        return _ops.decide_step(self._job.group_path, verdicts)


def reduce_over(
    collectives: Collectives,
    own: _ops.Merged,
    name: str,
    *,
    reduction: str,
    wire: str,
    world_size: int,
    wanted: bool = True,
) -> list[SparseGradient]:
    """Sends this process's gradients to all of `collectives`, and merges what all have sent, in their order.

    Args:
      collectives: Of the senders, this process among them.
      own: This process's gradients, keys unique, with the number of ranks in which each occurred.
      name: Of the operation.
      reduction: One of `REDUCTIONS`.
      wire: One of `config.placement.WIRES`. This process's own gradients are rounded, too.
      world_size: What "average" divides by.
      wanted: Whether this process needs the result. It sends in any case.

    Returns:
      One gradient per key, bit-identical wherever it is made; no rows unless `wanted`.
    """
    if not own.keys:
        return []
    if collectives.size == 1 and world_size == 1:  # every reduction is the identity
        return as_gradients(own)
    (buffers,) = collectives.allgather([_ops.pack(*own, wire)], name)
    dims = [int(rows.shape[1]) for rows in own.grads]
    if not wanted:
        with tf.control_dependencies([buffers]):
            return [SparseGradient(tf.zeros([0], tf.int64), tf.zeros([0, dim])) for dim in dims]
    return as_gradients(_ops.unpack_merge(buffers, world_size, reduction, dims))


def sum_replicated(gradients: Sequence[SparseGradient], collectives: Collectives, name: str) -> list[SparseGradient]:
    """The sum over all ranks of sparse gradients of replicated weights, on every rank. Keys come out unique."""
    own = of_one_rank(unique(gradients))
    return reduce_over(collectives, own, name, reduction="sum", wire="float32", world_size=collectives.size)
