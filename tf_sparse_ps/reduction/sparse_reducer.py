"""The sparse ring: all ranks' (key, gradient) sets become one gradient per key.

A key's final gradient is the sum over ranks divided by the number of ranks in which the key occurred ("frequency"), by
the number of ranks ("average"), or not at all ("sum"). "Occurred" is per rank and step: a rank that met a key in
several places of its batch, or in several calls of a layer, adds its gradients up first and counts once.

Sums are made in rank order in float32, so that whoever merges the same sets gets the same bits.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import cached_step

if TYPE_CHECKING:
    from tf_sparse_ps.job.job import Job
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.reduction.agreement import Agreement

REDUCTIONS = ("frequency", "average", "sum")
# Ops with N features and T tables whose outputs N to N + T - 1 are each a set of unique keys.
_UNIQUE_KEYS = ("TspsLookup", "TspsPooledLookup", "TspsUnique")


@dataclasses.dataclass(frozen=True)
class SparseGradient:
    """Rows of a gradient.

    Attributes:
      keys: int64[n].
      rows: float32[n, dim].
      unique: Whether no key repeats.
      device: Where the rows are, TensorFlow's name, if not on the host: of a table with rows there.
    """

    keys: tf.Tensor
    rows: tf.Tensor
    unique: bool = True
    device: str | None = None

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Within it ops are where the rows are."""
        return contextlib.nullcontext() if self.device is None else tf.device(self.device)

    @classmethod
    def nothing(cls, dim: int) -> SparseGradient:
        """The gradient of a table that this rank did not touch."""
        return cls(tf.zeros([0], tf.int64), tf.zeros([0, dim], tf.float32))

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
            return cls(tf.concat(keys, axis=0), tf.concat(rows, axis=0), unique=False)
        return cls(keys[0], rows[0], unique=_comes_from_one_lookup(slices[0].indices))


def _matrix(rows: tf.Tensor, dim: int) -> tf.Tensor:
    # As a lookup's gradient arrives it is one already: no op in the step for that.
    return rows if rows.shape.rank == 2 and rows.shape[1] == dim else tf.reshape(rows, [-1, dim])


def _comes_from_one_lookup(keys: tf.Tensor) -> bool:
    """Whether keys are unique because a lookup made them so. False when that cannot be told."""
    if tf.executing_eagerly():
        return False
    while keys.op.type == "Identity":
        keys = keys.op.inputs[0]
    if keys.op.type == "TspsCacheTake":  # of one table
        return bool(keys.value_index == keys.op.get_attr("N"))
    if keys.op.type not in _UNIQUE_KEYS:
        return False
    first = keys.op.get_attr("N")
    return bool(first <= keys.value_index < first + keys.op.get_attr("T"))


@dataclasses.dataclass(frozen=True)
class Update:
    """What makes a step of reduced gradients.

    Attributes:
      tables: Whose step it is.
      hyper: Each table's hyperparameters, as `_ops.apply` takes them.
      optimizer: Whose step it is, likewise, int64[2].
      against: What this rank has against the step, whatever comes out of reducing: verdicts, uint8[n].
      agreement: What ranks must agree on before the step is made; None: nothing.
    """

    tables: list[TableBinding]
    hyper: list[tf.Tensor]
    optimizer: tf.Tensor
    against: list[tf.Tensor] = dataclasses.field(default_factory=list)
    agreement: Agreement | None = None

    @property
    def digest(self) -> tf.Tensor:
        """int64, of what ranks must agree on."""
        return tf.zeros([], tf.int64) if self.agreement is None else self.agreement.digest

    @property
    def paths(self) -> list[tf.Tensor]:
        """What names the tables in a graph, string scalars: the graph that captures them keeps the tables."""
        return [table.path_tensor for table in self.tables]

    @property
    def uuids(self) -> list[str]:
        """Of the tables."""
        return [table.uuid for table in self.tables]

    @property
    def voters(self) -> int:
        """How many nodes make the step together or not at all, also if one of them is killed meanwhile.

        1: tables that every node has are the same on all of them, and each makes its step for itself.
        """
        return max(table.nodes if table.placement == "sharded" else 1 for table in self.tables)


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
        if any(table.cache is not None for table in update.tables):
            return cached_step.make(self._job, step, reduced, update)
        job, keys, rows = self._job, [one.keys for one in reduced], [one.rows for one in reduced]
        args = update.paths, update.uuids, keys, rows, update.hyper, update.optimizer
        if len(job.leaders) == 1:
            return _ops.make_step(job.group_path, step, job.timeout_s, *args, update.digest, operation=name)
        if job.is_leader:
            return self._decide(_ops.prepare_step(job.group_path, step, *args, update.voters), name, update)
        with tf.control_dependencies(rows):
            return self._decide(tf.constant(list(_ops.NOTHING_AGAINST), tf.uint8), name, update)

    def _decide(self, verdict: tf.Tensor, name: str, update: Update) -> tf.Tensor:
        """On several nodes: one small collective per step, in which each says what it has against it, and states."""
        with tf.control_dependencies([verdict]):  # once all look-ups of the step are made
            statement = _ops.statement(self._job.group_path, update.digest)
        own = tf.concat([*update.against, verdict, statement], 0)
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


def of_one_rank(gradients: Sequence[SparseGradient]) -> _ops.Merged:
    """With counts: every key occurred in one rank, this one."""
    keys = [one.keys for one in gradients]
    return _ops.Merged(keys, [one.rows for one in gradients], [tf.ones_like(one, dtype=tf.int32) for one in keys])


def as_gradients(merged: _ops.Merged) -> list[SparseGradient]:
    """Of each table; without the counts."""
    return [SparseGradient(keys, rows) for keys, rows in zip(merged.keys, merged.grads, strict=True)]


def sum_replicated(gradients: Sequence[SparseGradient], collectives: Collectives, name: str) -> list[SparseGradient]:
    """The sum over all ranks of sparse gradients of replicated weights, on every rank. Keys come out unique."""
    own = of_one_rank(unique(gradients))
    return reduce_over(collectives, own, name, reduction="sum", wire="float32", world_size=collectives.size)


def unique(gradients: Sequence[SparseGradient]) -> list[SparseGradient]:
    """The same with unique keys: a rank counts once for each of its keys, however often its layers met it."""
    own = list(gradients)
    repeated = [i for i, one in enumerate(own) if not one.unique]
    if repeated:
        merged = _ops.merge(*of_one_rank([own[i] for i in repeated]), 1, "local")
        for i, keys, rows in zip(repeated, merged.keys, merged.grads, strict=True):
            rows.set_shape([None, own[i].rows.shape[1]])
            own[i] = SparseGradient(keys, rows)
    return own
