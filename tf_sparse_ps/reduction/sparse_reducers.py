"""The implementations of `SparseReducer`, one for each path that sparse gradients can take between ranks."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.job import Job
from tf_sparse_ps.reduction import node_exchange
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient, Update, as_gradients, of_one_rank, unique
from tf_sparse_ps.reduction.sparse_reducer import SparseReducer, reduce_over

TOPOLOGIES = ("hierarchical", "flat")


class FlatReducer(SparseReducer):
    """Every rank's gradients travel to every rank."""

    def __init__(self, job: Job, reduction: str, wire: str) -> None:
        """`reduction`: one of `REDUCTIONS`; `wire`: one of `config.placement.WIRES`."""
        super().__init__(job)
        self._reduction, self._wire = reduction, wire

    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient]:
        """See `SparseReducer.reduce`."""
        if self._job.size == 1:  # every reduction is the identity; rows may be on a device
            return unique(gradients)
        return reduce_over(
            self._job.collectives,
            of_one_rank(unique(gradients)),
            name,
            reduction=self._reduction,
            wire=self._wire,
            world_size=self._job.size,
            wanted=self._job.is_leader,
        )

    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """See `SparseReducer.apply`."""
        return self.apply_reduced(self.reduce(gradients, name, step), name, step, update)


class NodeReducer(SparseReducer):
    """On the only node of a job: its ranks merge their gradients in shared memory. Nothing is sent."""

    def __init__(self, job: Job, reduction: str) -> None:
        """`job`: of this process, which joins the exchange of its node; `reduction`: one of `REDUCTIONS`."""
        super().__init__(job)
        self._reduction = reduction

    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """See `SparseReducer.apply`. The leader applies the merged gradients from where they lie."""
        own = unique(gradients)
        return _ops.node_apply(
            [one.keys for one in own],
            [one.rows for one in own],
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
        )

    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient]:
        """See `SparseReducer.reduce`."""
        own = unique(gradients)
        merged = _ops.node_merge(
            [one.keys for one in own],
            [one.rows for one in own],
            self._job.size,
            self._job.group_path,
            step,
            self._job.timeout_s,
            reduction=self._reduction,
            operation=name,
        )
        for rows, one in zip(merged.grads, own, strict=True):
            rows.set_shape([None, one.rows.shape[1]])
        return as_gradients(merged)


class HierarchicalReducer(SparseReducer):
    """The ranks of a node merge their gradients in shared memory, each a range of keys, and send what comes of it.

    A rank exchanges its range with the ranks of its number on the other nodes, and leaves the result to the leader. All
    go through it in rounds, so that what lies in buffers is bounded; how many is agreed on once per step, while the
    model computes. In one round are sent the gradients of the second, merged and packed those of the third, and
    unpacked and reduced those of the first.
    """

    def __init__(self, job: Job, reduction: str, wire: str) -> None:
        """Every rank of the job calls it: sets up the collectives between the nodes.

        Args:
          job: The rank's job, which joins the exchange of its node.
          reduction: One of `REDUCTIONS`.
          wire: One of `config.placement.WIRES`.
        """
        super().__init__(job)
        self._reduction, self._wire = reduction, wire
        self._exchange = node_exchange.of(job)
        self._cross_node_group = self._exchange.cross_node_group()

    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """See `SparseReducer.apply`. The leader applies the reduced gradients from where they lie."""
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
            reduced = _ops.ring_collect(self._job.group_path, [int(one.rows.shape[1]) for one in gradients])
        return as_gradients(reduced)

    @property
    def _owners(self) -> int:
        """Into how many buffers a round is packed."""
        return 1

    def _send(self, group: Collectives, packed: tf.Tensor, splits: tf.Tensor, name: str) -> tf.Tensor:
        """What the ranks of `group` have packed for this one, in their order."""
        return group.allgather([packed], name)[0]

    def run_rounds(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> tf.Tensor:
        """`reduce`, up to where the leader has everything. Returns the number of rounds, int64."""
        job, own = self._job, unique(gradients)
        keys, rows = [one.keys for one in own], [one.rows for one in own]
        dims = [int(one.shape[1]) for one in rows]
        wanted = _ops.ring_rounds(keys, dims, self._exchange.window(self._owners), job.collectives.local_size)
        rounds = tf.reduce_max(job.collectives.allgather([wanted], f"{name}.rounds")[0])

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
            )

        def make(
            round_: tf.Tensor, packed: tf.Tensor, splits: tf.Tensor, received: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
            """Sends a round, and beside that packs the next and reduces the one before."""
            sent = packed
            if self._cross_node_group is not None:
                sent = self._send(self._cross_node_group, packed, splits, f"{name}.nodes")
            # TensorFlow does not order a loop, which has resources, with ops that have none, as these.
            with tf.control_dependencies([packed]):
                following, its_splits = take(round_ + 1)
            if self._cross_node_group is not None:
                with tf.control_dependencies([following]):
                    _ops.ring_put(job.group_path, received, round_ - 1, len(keys), self._owners)
            return round_ + 1, following, its_splits, sent

        vector = tf.TensorShape([None])
        made, _, _, last = tf.while_loop(
            lambda round_, *_: round_ < rounds,
            make,
            (tf.constant(0, tf.int64), *take(tf.constant(0, tf.int64)), tf.zeros([0], tf.uint8)),
            shape_invariants=(tf.TensorShape([]), vector, vector, vector),
        )
        if self._cross_node_group is None:
            return made
        put = _ops.ring_put(job.group_path, last, rounds - 1, len(keys), self._owners)
        with tf.control_dependencies([] if put is None else [put]):  # None: eagerly
            return tf.identity(made)


class ShardedReducer(HierarchicalReducer):
    """The same for tables whose rows are spread over the nodes: a gradient goes to the node that has its row, alone.

    The sums are those of `HierarchicalReducer`: over the ranks of each node first, then over the nodes in their order.
    """

    @property
    def _owners(self) -> int:
        return len(self._job.leaders)

    def _send(self, group: Collectives, packed: tf.Tensor, splits: tf.Tensor, name: str) -> tf.Tensor:
        return group.alltoall(packed, splits, name)[0]


def make(placement: str, topology: str, job: Job, reduction: str, wire: str) -> SparseReducer:
    """The ring of a job for tables of one placement. Every rank calls it, with the same arguments.

    Args:
      placement: Of the tables (`TableBinding.placement`).
      topology: One of `TOPOLOGIES`, of replicated tables.
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
