"""`SparseGradient`: the gradient of a table. `Update`: how a step updates tables with such gradients."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.reduction.agreement import Agreement

# Ops with N features and T tables whose outputs N to N + T - 1 are each a set of unique keys.
_UNIQUE_KEYS = ("TspsLookup", "TspsPooledLookup", "TspsUnique")


@dataclasses.dataclass(frozen=True)
class SparseGradient:
    """The gradient of one table.

    Attributes:
      keys: int64[n].
      rows: float32[n, dim].
      unique: Whether no key repeats.
      device: TensorFlow's name of the device that holds the rows, for a table with a device cache; None: the host.
      counted: The uuid of the table, if it counts how often keys occur (`tsps.Admission`); None: it does not.
      counts: The counts of the keys (`_ops.take_occurrences`), int32[n]. None: they are still to be taken, or the table
        has none.
    """

    keys: tf.Tensor
    rows: tf.Tensor
    unique: bool = True
    device: str | None = None
    counted: str | None = None
    counts: tf.Tensor | None = None

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which ops run on the device of the rows."""
        return contextlib.nullcontext() if self.device is None else tf.device(self.device)

    @classmethod
    def nothing(cls, dim: int) -> SparseGradient:
        """Returns the gradient of a table that this rank did not look up."""
        return cls(tf.zeros([0], tf.int64), tf.zeros([0, dim], tf.float32))

    @classmethod
    def of(cls, slices: Sequence[tf.IndexedSlices], dim: int) -> SparseGradient:
        """Joins the gradients that arrived at the anchors of one table.

        Args:
          slices: Each has `values=float32[n, dim], indices=int64[n]`. Empty: this rank did not look up the table.
          dim: The row width.
        """
        if not slices:
            return cls.nothing(dim)
        keys = [tf.cast(part.indices, tf.int64) for part in slices]
        rows = [tf.cast(part.values, tf.float32) for part in slices]
        # The gradient of a lookup already has this shape, and the step then needs no op for it.
        rows = [part if part.shape.rank == 2 and part.shape[1] == dim else tf.reshape(part, [-1, dim]) for part in rows]
        if len(slices) > 1:
            return cls(tf.concat(keys, axis=0), tf.concat(rows, axis=0), unique=False)
        return cls(keys[0], rows[0], unique=_comes_from_one_lookup(slices[0].indices))


def _comes_from_one_lookup(keys: tf.Tensor) -> bool:
    """Whether keys are the unique keys of a lookup op. False if their origin is unknown."""
    if tf.executing_eagerly():
        return False
    while keys.op.type in ("Identity", "TspsCountOccurrences"):
        keys = keys.op.inputs[0]
    if keys.op.type == "TspsCacheTake":  # its keys are those of one table
        return bool(keys.value_index == keys.op.get_attr("N"))
    if keys.op.type not in _UNIQUE_KEYS:
        return False
    first = keys.op.get_attr("N")
    return bool(first <= keys.value_index < first + keys.op.get_attr("T"))


@dataclasses.dataclass(frozen=True)
class Update:
    """How a step updates tables once their gradients are reduced.

    Attributes:
      tables: The tables of the step.
      hyper: The hyperparameters of each table, as `_ops.make_step` takes them.
      optimizer: The identity of the optimizer and its number of steps, int64[2].
      objections: This rank's objections to the step, independent of the reduction: verdicts, uint8[n].
      agreement: What ranks must agree on before the step is made; None: nothing.
    """

    tables: list[TableBinding]
    hyper: list[tf.Tensor]
    optimizer: tf.Tensor
    objections: list[tf.Tensor] = dataclasses.field(default_factory=list)
    agreement: Agreement | None = None

    @property
    def digest(self) -> tf.Tensor:
        """The digest of what ranks must agree on, int64; 0: nothing."""
        return tf.zeros([], tf.int64) if self.agreement is None else self.agreement.digest

    @property
    def paths(self) -> list[tf.Tensor]:
        """The tables' names in a graph, string scalars. A graph that captures them keeps the tables in use."""
        return [table.path_tensor for table in self.tables]

    @property
    def uuids(self) -> list[str]:
        """The uuids of the tables."""
        return [table.uuid for table in self.tables]

    @property
    def voters(self) -> int:
        """The number of nodes that publish the step together or not at all, even if one of them is killed meanwhile.

        1 for replicated tables: all nodes make the same step, each for itself.
        """
        return max(table.nodes if table.placement == "sharded" else 1 for table in self.tables)


def of_one_rank(gradients: Sequence[SparseGradient]) -> _ops.Merged:
    """Adds the counts that reducing needs: each key occurred in one rank, this one."""
    keys, rows = [gradient.keys for gradient in gradients], [gradient.rows for gradient in gradients]
    return _ops.Merged(keys, rows, _ops.counts_of(keys, [gradient.counts for gradient in gradients]))


def as_gradients(merged: _ops.Merged, contributed: Sequence[SparseGradient]) -> list[SparseGradient]:
    """Returns the reduced gradient of each table, with counts for tables that count keys.

    Args:
      merged: The reduced gradients.
      contributed: This rank's gradients of the same tables.
    """
    return [
        SparseGradient(keys, rows, counted=gradient.counted, counts=None if gradient.counted is None else counts)
        for keys, rows, counts, gradient in zip(*merged, contributed, strict=True)
    ]


def unique(gradients: Sequence[SparseGradient]) -> list[SparseGradient]:
    """Adds up rows with equal keys: a rank counts once for each key, however often its layers looked it up.

    Takes the counts of tables that count keys, so it is called once in a step.
    """
    result = list(gradients)
    repeated = [i for i, gradient in enumerate(result) if not gradient.unique]
    if repeated:
        merged = _ops.merge(*of_one_rank([result[i] for i in repeated]), 1, "local")
        for i, keys, rows in zip(repeated, merged.keys, merged.grads, strict=True):
            rows.set_shape([None, result[i].rows.shape[1]])
            result[i] = dataclasses.replace(result[i], keys=keys, rows=rows, unique=True)
    for i, gradient in enumerate(result):
        if gradient.counted is not None and gradient.counts is None:
            result[i] = dataclasses.replace(gradient, counts=_ops.take_occurrences(gradient.keys, gradient.counted))
    return result
