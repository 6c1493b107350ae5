"""The implementations of `SparseReducer`: one for each path of sparse gradients between ranks."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.job import Job
from tf_sparse_ps.reduction import node_exchange
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient, Update, as_gradients, unique
from tf_sparse_ps.reduction.sparse_reducer import SparseReducer, reduce_over

TOPOLOGIES = ("hierarchical", "flat")


class FlatReducer(SparseReducer):
    """Sends the gradients of each rank to all ranks."""

    def __init__(self, job: Job, reduction: str, wire: str) -> None:
        """Makes a reducer. `reduction`: one of `REDUCTIONS`; `wire`: one of `config.placement.WIRES`."""
        super().__init__(job)
        self._reduction, self._wire = reduction, wire

    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient]:
        """See `SparseReducer.reduce`."""
        if self._job.size == 1:  # every reduction is the identity, and rows may be on a device
            return unique(gradients)
        return reduce_over(
            self._job.collectives,
            unique(gradients),
            name,
            reduction=self._reduction,
            wire=self._wire,
            world_size=self._job.size,
            wanted=self._job.is_leader,
        )


class NodeReducer(SparseReducer):
    """Merges the gradients of the ranks in shared memory, without sending. For a job on one node."""

    def __init__(self, job: Job, reduction: str) -> None:
        """Makes a reducer. `job`: the rank's job, which has joined its exchange; `reduction`: one of `REDUCTIONS`."""
        super().__init__(job)
        self._reduction = reduction

    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """See `SparseReducer.apply`. The leader applies the merged gradients without copying them."""
        contributed = unique(gradients)
        return _ops.node_apply(
            [grad.keys for grad in contributed],
            [grad.rows for grad in contributed],
            self._job.size,
            self._job.group_path,
            step,
            self._job.timeout_s,
            update.paths,
            update.uuids,
            update.hyper,
            update.optimizer,
            update.digest,
            reduction=self._reduction,
            operation=name,
            counts=[grad.counts for grad in contributed],
        )

    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient]:
        """See `SparseReducer.reduce`."""
        contributed = unique(gradients)
        merged = _ops.node_merge(
            [grad.keys for grad in contributed],
            [grad.rows for grad in contributed],
            self._job.size,
            self._job.group_path,
            step,
            self._job.timeout_s,
            reduction=self._reduction,
            operation=name,
            counts=[grad.counts for grad in contributed],
        )
        for rows, grad in zip(merged.grads, contributed, strict=True):
            rows.set_shape([None, grad.rows.shape[1]])
        return as_gradients(merged, contributed)


class HierarchicalReducer(SparseReducer):
    """Merges gradients within each node in shared memory, then between nodes.

    Each rank merges one range of keys of its node. It then exchanges this range with the ranks that have the same local
    rank on the other nodes, and leaves the result in shared memory for the leader. All ranks do this in rounds, so that
    the size of the buffers is bounded. They agree on the number of rounds once per step, while the model computes.
    While a rank sends round n, it merges and packs round n + 1, and unpacks and reduces round n - 1.
    """

    def __init__(self, job: Job, reduction: str, wire: str) -> None:
        """Makes a reducer, and the collectives between nodes. Every rank of the job calls it.

        Args:
          job: The rank's job, which has joined its exchange.
          reduction: One of `REDUCTIONS`.
          wire: One of `config.placement.WIRES`.
        """
        super().__init__(job)
        self._reduction, self._wire = reduction, wire
        self._exchange = node_exchange.of(job)
        self._cross_node_group = self._exchange.cross_node_group()

    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """See `SparseReducer.apply`. The leader applies the reduced gradients without copying them."""
        with tf.control_dependencies([self.run_rounds(gradients, name, step)]):
            prepared = _ops.ring_prepare(
                self._job.group_path,
                step,
                update.paths,
                update.uuids,
                update.hyper,
                update.optimizer,
                update.voters,
            )
        return self._decide(prepared, name, update)

    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient]:
        """See `SparseReducer.reduce`."""
        with tf.control_dependencies([self.run_rounds(gradients, name, step)]):
            reduced = _ops.ring_collect(self._job.group_path, [int(grad.rows.shape[1]) for grad in gradients])
        return as_gradients(reduced, gradients)

    @property
    def _owners(self) -> int:
        """The number of buffers into which a round is packed: one for each owner."""
        return 1

    def _send(self, group: Collectives, packed: tf.Tensor, splits: tf.Tensor, name: str) -> tf.Tensor:
        """Sends a packed round. Returns what the ranks of `group` have packed for this rank, in their order."""
        return group.allgather([packed], name)[0]

    def run_rounds(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> tf.Tensor:
        """Runs the rounds of `reduce`, after which the leader has all gradients. Returns their number, int64."""
        job, contributed = self._job, unique(gradients)
        keys, rows = [grad.keys for grad in contributed], [grad.rows for grad in contributed]
        counts = [grad.counts for grad in contributed]
        dims = [int(grad.rows.shape[1]) + (grad.counts is not None) for grad in contributed]
        needed = _ops.ring_rounds(keys, dims, self._exchange.window(self._owners), job.collectives.local_size)
        rounds = tf.reduce_max(job.collectives.allgather([needed], f"{name}.rounds")[0])

        def take(round_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return _ops.ring_take(
                keys,
                rows,
                job.size,
                job.group_path,
                step,
                job.timeout_s,
                round_,
                rounds,
                reduction=self._reduction,
                operation=name,
                wire=self._wire,
                owners=self._owners,
                counts=counts,
            )

        def run_round(
            round_: tf.Tensor, packed: tf.Tensor, splits: tf.Tensor, received: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
            """Sends a round. Meanwhile it packs the next one and reduces the previous one."""
            sent = packed
            if self._cross_node_group is not None:
                sent = self._send(self._cross_node_group, packed, splits, f"{name}.nodes")
            # The loop has resources and these ops have none, so TensorFlow does not order them by itself.
            with tf.control_dependencies([packed]):
                next_packed, next_splits = take(round_ + 1)
            if self._cross_node_group is not None:
                with tf.control_dependencies([next_packed]):
                    _ops.ring_put(job.group_path, received, round_ - 1, len(keys), self._owners)
            return round_ + 1, next_packed, next_splits, sent

        vector = tf.TensorShape([None])
        rounds_run, _, _, last = tf.while_loop(
            lambda round_, *_: round_ < rounds,
            run_round,
            (tf.constant(0, tf.int64), *take(tf.constant(0, tf.int64)), tf.zeros([0], tf.uint8)),
            shape_invariants=(tf.TensorShape([]), vector, vector, vector),
        )
        if self._cross_node_group is None:
            return rounds_run
        put = _ops.ring_put(job.group_path, last, rounds - 1, len(keys), self._owners)
        with tf.control_dependencies([] if put is None else [put]):  # None in eager mode
            return tf.identity(rounds_run)


class ShardedReducer(HierarchicalReducer):
    """A `HierarchicalReducer` for sharded tables: a gradient is sent only to the node that owns its row.

    The order of sums is the same: first over the ranks of each node, then over the nodes.
    """

    @property
    def _owners(self) -> int:
        return len(self._job.leaders)

    def _send(self, group: Collectives, packed: tf.Tensor, splits: tf.Tensor, name: str) -> tf.Tensor:
        return group.alltoall(packed, splits, name)[0]


def make(placement: str, topology: str, job: Job, reduction: str, wire: str) -> SparseReducer:
    """Makes the reducer of a job for tables of one placement. Every rank calls it, with the same arguments.

    Args:
      placement: The placement of the tables (`TableBinding.placement`).
      topology: One of `TOPOLOGIES`, for replicated tables.
      job: The rank's job.
      reduction: One of `REDUCTIONS`.
      wire: One of `config.placement.WIRES`.
    """
    if placement == "sharded":
        return ShardedReducer(job, reduction, wire)
    if topology == "flat" or job.size == 1:
        return FlatReducer(job, reduction, wire)
    if len(job.leaders) == 1:
        return NodeReducer(job, reduction)
    return HierarchicalReducer(job, reduction, wire)
