"""The sparse ring: all ranks' (key, gradient) sets become one gradient per key.

A key's final gradient is the sum over ranks divided by the number of ranks in which the key occurred ("frequency"), by
the number of ranks ("average"), or not at all ("sum"). "Occurred" is per rank and step: a rank that met a key in
several places of its batch, or in several calls of a layer, adds its gradients up first and counts once.

Sums are made in rank order in float32, so that whoever merges the same sets gets the same bits.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives

if TYPE_CHECKING:
    from tf_sparse_ps.job import Job

REDUCTIONS = ("frequency", "average", "sum")
TOPOLOGIES = ("hierarchical", "flat")
# Ops whose int64 outputs are sets of unique keys.
_UNIQUE_KEYS = ("TspsLookup", "TspsPooledLookup")


@dataclasses.dataclass(frozen=True)
class SparseGradient:
    """Rows of a gradient.

    Attributes:
      keys: int64[n].
      rows: float32[n, dim].
      ranks: How many ranks' sets are in it, one after another, keys unique within each; 0: keys may repeat at will.
    """

    keys: tf.Tensor
    rows: tf.Tensor
    ranks: int

    @classmethod
    def nothing(cls, dim: int) -> SparseGradient:
        """The gradient of a table that this rank did not touch."""
        return cls(tf.zeros([0], tf.int64), tf.zeros([0, dim], tf.float32), ranks=1)

    @classmethod
    def of(cls, slices: Sequence[tf.IndexedSlices], dim: int) -> SparseGradient:
        """The gradient of a table from those of its anchors.

        Args:
          slices: Each `values=float32[n, dim], indices=int64[n]`. Empty: a table that this rank did not touch.
          dim: Floats per row.
        """
        if not slices:
            return cls.nothing(dim)
        keys = [tf.cast(one.indices, tf.int64) for one in slices]
        rows = [_matrix(tf.cast(one.values, tf.float32), dim) for one in slices]
        if len(slices) > 1:
            return cls(tf.concat(keys, axis=0), tf.concat(rows, axis=0), ranks=0)
        return cls(keys[0], rows[0], ranks=1 if _comes_from_one_lookup(slices[0].indices) else 0)


def _matrix(rows: tf.Tensor, dim: int) -> tf.Tensor:
    # As a lookup's gradient arrives it is one already: no op in the step for that.
    return rows if rows.shape.rank == 2 and rows.shape[1] == dim else tf.reshape(rows, [-1, dim])


def _comes_from_one_lookup(keys: tf.Tensor) -> bool:
    """Whether keys are unique because a lookup made them so. False when that cannot be told."""
    if tf.executing_eagerly():
        return False
    producer = keys.op
    while producer.type == "Identity":
        producer = producer.inputs[0].op
    return producer.type in _UNIQUE_KEYS


@dataclasses.dataclass(frozen=True)
class Update:
    """What makes a step of reduced gradients.

    Attributes:
      paths, uuids: Of the tables.
      hyper: Each table's hyperparameters, as `_ops.apply` takes them.
    """

    paths: list[str]
    uuids: list[str]
    hyper: list[tf.Tensor]

    def apply(self, step: tf.Tensor, keys: list[tf.Tensor], rows: list[tf.Tensor]) -> tf.Tensor:
        """On a leader: writes the tables and publishes `step`, which is returned."""
        return _ops.apply(step, self.paths, self.uuids, keys, rows, self.hyper)


class SparseRing(abc.ABC):
    """Makes one gradient per key and table of all ranks' gradients."""

    @abc.abstractmethod
    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient] | None:
        """Every rank calls it, in a step.

        Args:
          gradients: This rank's, in an order of tables that is the same on all ranks.
          name: Of the operation.
          step: int64, the step being made.

        Returns:
          The reduced gradients on the leader of every node, the same bits on all of them; None on other ranks.
        """

    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """`reduce`, and the leaders apply what comes out of it.

        Returns:
          `step`, once this rank has done its part of it.
        """
        reduced = self.reduce(gradients, name, step)
        if reduced is None:
            return step
        return update.apply(step, [one.keys for one in reduced], [one.rows for one in reduced])


class FlatRing(SparseRing):
    """Every rank's gradients travel to every rank."""

    def __init__(self, collectives: Collectives, reduction: str, *, is_leader: bool) -> None:
        """`reduction`: one of `REDUCTIONS`."""
        self._collectives, self._reduction, self._is_leader = collectives, reduction, is_leader

    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient] | None:
        """See `SparseRing.reduce`."""
        exchanged = exchange(gradients, self._collectives, name)
        return reduce(exchanged, self._reduction, self._collectives.size) if self._is_leader else None


class HierarchicalRing(SparseRing):
    """The ranks of a node merge their gradients in shared memory; only the leaders' travel, with counts."""

    def __init__(self, job: Job, reduction: str) -> None:
        """Every rank of the job calls it: sets up the exchange of this node and the collectives of the leaders.

        Args:
          job: Of this process.
          reduction: One of `REDUCTIONS`.
        """
        self._job, self._reduction = job, reduction
        job.join_exchange()
        self._leaders = job.leaders_collectives()
        job.collectives.barrier("tsps.exchange")

    def apply(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor, update: Update) -> tf.Tensor:
        """See `SparseRing.apply`. On one node the leader applies the merged gradients from where they lie."""
        if len(self._job.leaders) > 1:
            return super().apply(gradients, name, step, update)
        own = _unique(gradients)
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
            reduction=self._reduction,
            operation=name,
        )

    def reduce(self, gradients: Sequence[SparseGradient], name: str, step: tf.Tensor) -> list[SparseGradient] | None:
        """See `SparseRing.reduce`."""
        job, world_size = self._job, self._job.size
        own = _unique(gradients)
        one_node = len(job.leaders) == 1
        if job.collectives.local_size > 1:
            merged = _ops.node_merge(
                [one.keys for one in own],
                [one.rows for one in own],
                world_size,
                job.group_path,
                step,
                job.timeout_s,
                reduction=self._reduction if one_node else "sum",
                operation=name,
            )
        else:
            merged = _ops.Merged(
                [one.keys for one in own],
                [one.rows for one in own],
                [tf.ones_like(one.keys, dtype=tf.int32) for one in own],
            )
        if self._leaders is None:
            return None
        if not one_node:
            n = len(own)
            gathered = self._leaders.allgather([*merged.keys, *merged.grads, *merged.counts], f"{name}.leaders")
            merged = _ops.merge(gathered[:n], gathered[n : 2 * n], gathered[2 * n :], world_size, self._reduction)
        for rows, gradient in zip(merged.grads, own, strict=True):
            rows.set_shape([None, gradient.rows.shape[1]])
        return [SparseGradient(keys, rows, ranks=1) for keys, rows in zip(merged.keys, merged.grads, strict=True)]


def make(topology: str, job: Job, reduction: str) -> SparseRing:
    """The ring of a job. Every rank calls it, with the same arguments.

    Args:
      topology: One of `TOPOLOGIES`.
      job: Of this process.
      reduction: One of `REDUCTIONS`.
    """
    if topology == "flat" or job.size == 1:
        return FlatRing(job.collectives, reduction, is_leader=job.is_leader)
    return HierarchicalRing(job, reduction)


def _unique(gradients: Sequence[SparseGradient]) -> list[SparseGradient]:
    """The same with unique keys: a rank counts once for each of its keys."""
    own = list(gradients)
    repeated = [i for i, gradient in enumerate(own) if gradient.ranks == 0]
    if repeated:
        for i, merged in zip(repeated, _merge([own[i] for i in repeated], "local", 1), strict=True):
            own[i] = merged
    return own


def exchange(gradients: Sequence[SparseGradient], collectives: Collectives, name: str) -> list[SparseGradient]:
    """Gives every rank the sets of all ranks, in rank order. Merges repeated keys of this rank first.

    Args:
      gradients: This rank's, in an order of tables that is the same on all ranks.
      collectives: Of this process.
      name: Of the operation.
    """
    own = _unique(gradients)
    if collectives.size == 1 or not own:
        return own
    # Counts need not travel: every rank's is 1 for each of its keys.
    gathered = collectives.allgather([*(one.keys for one in own), *(one.rows for one in own)], name)
    return [
        SparseGradient(keys, rows, ranks=collectives.size)
        for keys, rows in zip(gathered[: len(own)], gathered[len(own) :], strict=True)
    ]


def reduce(gradients: Sequence[SparseGradient], reduction: str, world_size: int) -> list[SparseGradient]:
    """Makes one gradient per key from what `exchange` returned. Bit-identical wherever it is done.

    Args:
      gradients: One per table.
      reduction: One of `REDUCTIONS`.
      world_size: Number of ranks.
    """
    if world_size == 1 or not gradients:
        return list(gradients)  # one rank: every reduction is the identity
    return _merge(gradients, reduction, world_size)


def _merge(gradients: Sequence[SparseGradient], reduction: str, world_size: int) -> list[SparseGradient]:
    counts = [tf.ones_like(one.keys, dtype=tf.int32) for one in gradients]
    merged = _ops.merge([one.keys for one in gradients], [one.rows for one in gradients], counts, world_size, reduction)
    for rows, gradient in zip(merged.grads, gradients, strict=True):
        rows.set_shape([None, gradient.rows.shape[1]])
    return [SparseGradient(keys, rows, ranks=1) for keys, rows in zip(merged.keys, merged.grads, strict=True)]
