"""`SparseReducer`: reduces the gradients of all ranks to one gradient per key.

The reduced gradient of a key is the sum over ranks, divided by the number of ranks in which the key occurred
("frequency"), by the number of all ranks ("average"), or not divided ("sum"). A rank in which a key occurred several
times, in its batch or in several calls of a layer, first adds up its gradients, and counts once.

Ranks are added in their order, in float32, so that the result is bit-identical wherever it is computed.
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
    """Reduces the gradients of all ranks to one gradient per key and table, and makes the step of the tables.

    All nodes make a step, or none. `apply` and `apply_reduced` return the verdict for `_ops.check_step`, uint8[n], the
    same on all ranks. The leaders may still be writing then, while other ops run.
    """

    def __init__(self, job: Job) -> None:
        """Makes a reducer of a job. `job`: this process's job."""
        self._job = job

    @abc.abstractmethod
    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient]:
        """Reduces the gradients of a step. Every rank calls it.

        Args:
          gradients: This rank's gradients. The order of the tables is the same on all ranks.
          name: The name of the operation.
          step: The number of the step, int64.

        Returns:
          The reduced gradients on the leader of each node, bit-identical on all of them. Other ranks return no rows,
          after they have contributed.
        """

    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """Reduces gradients as `reduce` does, and makes the step. Every rank calls it. Returns the verdict."""
        return self.apply_reduced(self.reduce(gradients, name, step), name, step, update)

    def apply_reduced(self, reduced: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """Makes the step of gradients that `reduce` returned. Every rank calls it. Returns the verdict."""
        if any(cache_of(table) is not None for table in update.tables):
            return cached_step.make(self._job, step, reduced, update)
        job, keys, rows = self._job, [grad.keys for grad in reduced], [grad.rows for grad in reduced]
        args = update.paths, update.uuids, keys, rows, update.hyper, update.optimizer
        counts = [grad.counts for grad in reduced]
        if len(job.leaders) == 1:
            timeout_s, digest = job.timeout_s, update.digest
            return _ops.make_step(job.group_path, step, timeout_s, *args, digest, operation=name, counts=counts)
        if job.is_leader:
            prepared = _ops.prepare_step(job.group_path, step, *args, update.voters, counts=counts)
            return self._decide(prepared, name, update)
        with tf.control_dependencies(rows):
            return self._decide(tf.constant(list(_ops.NO_OBJECTIONS), tf.uint8), name, update)

    def _decide(self, verdict: tf.Tensor, name: str, update: Update) -> tf.Tensor:
        """Exchanges the objections and statements of all ranks on several nodes, in one small collective per step."""
        with tf.control_dependencies([verdict]):  # after all lookups of the step
            statement = _ops.statement(self._job.group_path, update.digest)
        vote = tf.concat([*update.objections, verdict, statement], 0)
        (verdicts,) = self._job.collectives.allgather([vote], f"{name}.verdict")
        return _ops.decide_step(self._job.group_path, verdicts)


def reduce_over(
    collectives: Collectives,
    gradients: Sequence[SparseGradient],
    name: str,
    *,
    reduction: str,
    wire: str,
    world_size: int,
    wanted: bool = True,
) -> list[SparseGradient]:
    """Sends this process's gradients to all ranks of `collectives`, and merges those of all ranks, in their order.

    Args:
      collectives: The collectives among the senders, which include this process.
      gradients: This process's gradients, with unique keys.
      name: The name of the operation.
      reduction: One of `REDUCTIONS`.
      wire: One of `config.placement.WIRES`. This process's own gradients are also rounded to it.
      world_size: The divisor of "average".
      wanted: Whether this process needs the result. It sends its gradients in any case.

    Returns:
      One gradient per key, bit-identical wherever it is computed. No rows if not `wanted`.
    """
    if not gradients:
        return []
    if collectives.size == 1 and world_size == 1:  # every reduction is the identity
        return list(gradients)
    (buffers,) = collectives.allgather([_ops.pack(*of_one_rank(gradients), wire)], name)
    dims = [int(gradient.rows.shape[1]) for gradient in gradients]
    if not wanted:
        with tf.control_dependencies([buffers]):
            return [SparseGradient(tf.zeros([0], tf.int64), tf.zeros([0, dim])) for dim in dims]
    return as_gradients(_ops.unpack_merge(buffers, world_size, reduction, dims), gradients)


def sum_replicated(gradients: Sequence[SparseGradient], collectives: Collectives, name: str) -> list[SparseGradient]:
    """Returns the sum over all ranks of sparse gradients of replicated weights, with unique keys, on every rank."""
    contributed = unique(gradients)
    return reduce_over(collectives, contributed, name, reduction="sum", wire="float32", world_size=collectives.size)
