"""Separates the gradients of one step: of tables, of dense weights, and big sparse gradients of other variables."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.reduction import clipping
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient

# A gradient of another layer that arrives as IndexedSlices is made dense if its variable has at most this many
# elements. Otherwise it is reduced by an all-gather of its rows (`rank_weight.average_sparse`).
_DENSIFY_UP_TO = 1 << 20
_WIDEST_ROW = 1 << 16  # the widest row that the all-gather takes
_MARK = "_tsps_mean"
# The ops that make the gradient of a table. The search for Horovod's ops stops at them.
_OWN_OPS = (
    "TspsSegmentSum",
    "TspsPooledSum",
    "TspsLookup",
    "TspsPooledLookup",
    "TspsUnique",
    "TspsCountOccurrences",
)
_OPS_LOOKED_AT = 256


@dataclasses.dataclass(frozen=True)
class Mean:
    """The weights with which a `DistributedGradientTape` has averaged gradients.

    Attributes:
      weight: The weight of this rank.
      sums: The sums of the ranks' weights, for `rank_weight.check`.
    """

    weight: tf.Tensor
    sums: list[tf.Tensor]


def mark_averaged(gradient: Any, mean: Mean) -> None:
    """Marks a gradient of a `DistributedGradientTape`, which is already the mean over the ranks."""
    setattr(gradient, _MARK, mean)


def mean_of(gradient: Any) -> Mean | None:
    """Returns the mark of a gradient that is already averaged. None: it is the gradient of this rank alone."""
    return getattr(gradient, _MARK, None)


@dataclasses.dataclass
class TableGradient:
    """The gradients that arrived at the anchors of a table. If several devices have rows of it: those of one device.

    Attributes:
      table: The `TableBinding`.
      slices: The gradients.
      merged: The gradient of several replicas, which replaces `slices`.
    """

    table: Any
    slices: list[tf.IndexedSlices]
    merged: SparseGradient | None = None

    @property
    def gradient(self) -> SparseGradient:
        """The gradient as one set of keys and rows."""
        if self.merged is not None:
            return self.merged
        if (cache := cache_of(self.table)) is not None:
            return self.on(cache.devices[0])
        gradient = SparseGradient.of(self.slices, self.table.config.dim)
        return dataclasses.replace(gradient, counted=self.table.counted)

    def on(self, device: str) -> SparseGradient:
        """Returns the gradient, with unique keys, on a device that has rows of the table."""
        with tf.device(device):
            gradient = SparseGradient.of(self.slices, self.table.config.dim)
        if not gradient.unique:
            cache = cache_of(self.table)
            assert cache is not None
            gradient = SparseGradient(*cache.merge(gradient.keys, gradient.rows, device))
        return dataclasses.replace(gradient, device=device)


@dataclasses.dataclass
class DenseGradient:
    """The gradient of a replicated weight.

    Attributes:
      variable: The weight.
      value: The gradient of this rank: a tensor, IndexedSlices if `big`, or None.
      result: The reduced gradient.
      sparse: Whether the gradient arrived as IndexedSlices.
    """

    variable: Any
    value: Any
    result: Any = None
    sparse: bool = False

    @property
    def big(self) -> bool:
        """Whether the gradient is reduced as keys and rows."""
        return isinstance(self.value, tf.IndexedSlices)

    @property
    def to_average(self) -> bool:
        """Whether the gradient is still to be averaged by the all-reduce of dense gradients."""
        return self.value is not None and not self.big and mean_of(self.value) is None

    @property
    def gradient(self) -> SparseGradient:
        """The keys and rows of a big gradient."""
        width = tf.TensorShape(self.variable.shape[1:]).num_elements()
        return SparseGradient.of([self.value], width)

    @property
    def bytes(self) -> int:
        """The size of a dense gradient in bytes.

        Raises:
          ValueError: The variable has no fixed shape.
        """
        if not tf.TensorShape(self.variable.shape).is_fully_defined():
            raise ValueError(
                f"variable {self.variable.name!r} has shape {self.variable.shape}, which is not fixed, so its gradient "
                "cannot be averaged over ranks. Give the variable a shape without None"
            )
        return int(tf.TensorShape(self.variable.shape).num_elements()) * int(self.value.dtype.size)

    @property
    def signature(self) -> str:
        """The kind and shape of the gradient, which must be equal on all ranks."""
        kind = "none" if self.value is None else "sparse" if self.big else "dense"
        return f"{kind}{list(self.variable.shape)}"


def split(pairs: list[tuple[Any, Any]]) -> tuple[list[TableGradient], list[DenseGradient]]:
    """Separates gradients of tables, one entry per table in the order of the ordinals, from dense gradients.

    Args:
      pairs: Gradients and their variables.

    Raises:
      ValueError: The gradient of a table is not as the tape returned it.
    """
    tables: dict[str, TableGradient] = {}
    dense: list[DenseGradient] = []
    for gradient, variable in pairs:
        table = binding_of(variable)
        if table is None:
            is_sparse = isinstance(gradient, tf.IndexedSlices)
            dense.append(DenseGradient(variable, _dense_or_big(gradient, variable), sparse=is_sparse))
            continue
        entry = tables.setdefault(table.path, TableGradient(table, []))
        if gradient is None:
            continue
        if not isinstance(gradient, tf.IndexedSlices):
            raise ValueError(
                f"the gradient of table '{table.config.name}' must be tf.IndexedSlices, as the tape returns it, but "
                "the program made it dense. A dense gradient would update every row, as if the batch had all keys. To "
                "clip it, use the wrapped optimizer's clipnorm, clipvalue or global_clipnorm. To add up gradients of "
                "several batches, concatenate their parts: tf.IndexedSlices(tf.concat([a.values, b.values], 0), "
                "tf.concat([a.indices, b.indices], 0)). The step adds up rows with the same key. "
                f"Received: {gradient!r}"
            )
        refuse_reduced(gradient, table)
        entry.slices.append(gradient)
    return sorted(tables.values(), key=lambda entry: entry.table.ordinal), dense


def _dense_or_big(gradient: Any, variable: Any) -> Any:
    shape = tf.TensorShape(variable.shape)
    if not isinstance(gradient, tf.IndexedSlices):
        # A Python or NumPy function in the backward pass returns a tensor of unknown shape.
        unknown = tf.is_tensor(gradient) and not gradient.shape.is_fully_defined() and mean_of(gradient) is None
        return tf.ensure_shape(gradient, shape) if unknown else gradient
    wide = shape[1:].num_elements() > _WIDEST_ROW
    if shape.num_elements() > _DENSIFY_UP_TO and not wide and gradient.values.dtype == tf.float32 and shape.rank >= 1:
        return gradient
    # The shape is that of the variable, because the shape of the slices may be unknown.
    slices = tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(shape.as_list(), tf.int64))
    return tf.ensure_shape(tf.convert_to_tensor(slices), shape)


def refuse_reduced(gradient: tf.IndexedSlices, table: Any) -> None:
    """Raises ValueError if Horovod has already reduced a table's gradient. Only graphs show whether it has."""
    if tf.executing_eagerly():
        return
    # Each tensor comes with the calls of the functions whose bodies contain it, the outermost first.
    pending: list[tuple[tf.Tensor, tuple[Any, ...]]] = [(gradient.values, ()), (gradient.indices, ())]
    seen: set[tuple[tf.Operation, tuple[Any, ...]]] = set()
    while pending and len(seen) < _OPS_LOOKED_AT:
        tensor, calls = pending.pop()
        op = tensor.op
        if (op, calls) in seen or op.type in _OWN_OPS:
            continue
        seen.add((op, calls))
        if op.type.startswith("Horovod"):
            raise ValueError(
                f"the gradient of table '{table.config.name}' has already been reduced by Horovod ({op.type}). This "
                "loses the number of ranks of each key. Use tsps.DistributedGradientTape in place of Horovod's."
            )
        if (body := _keras.body_of_call(op)) is not None:
            pending.append((body.outputs[tensor.value_index], (*calls, op)))
        elif calls and (argument := _argument(tensor, calls[-1])) is not None:
            pending.append((argument, calls[:-1]))
        else:
            pending.extend((op_input, calls) for op_input in op.inputs)


def _argument(tensor: tf.Tensor, call: tf.Operation) -> tf.Tensor | None:
    """Returns the argument of a call for a tensor that is a parameter in the body of the called function, else None."""
    parameters = zip(call.inputs, _keras.body_of_call(call).inputs, strict=True)
    return next((argument for argument, parameter in parameters if parameter.name == tensor.name), None)


def take_back(dense: list[DenseGradient], averaged: list[tf.Tensor], reduced: list[SparseGradient]) -> None:
    """Sets the results of dense gradients.

    Args:
      dense: The gradients.
      averaged: The means of those with `to_average`.
      reduced: The means of the big ones.
    """
    means = iter(averaged)
    for gradient in dense:
        if gradient.to_average:
            gradient.result = next(means)
        elif not gradient.big:
            gradient.result = gradient.value  # None, or averaged by a DistributedGradientTape
    big = [gradient for gradient in dense if gradient.big]
    for gradient, merged in zip(big, reduced, strict=True):
        shape = list(gradient.variable.shape)
        rows = tf.reshape(merged.rows, [-1, *shape[1:]])
        gradient.result = tf.IndexedSlices(rows, merged.keys, tf.constant(shape, tf.int64))


def unscale(gradient: Any, factor: float) -> Any:
    """Divides a gradient by Keras's loss scale. `factor`: the loss scale."""
    return gradient if factor == 1.0 else clipping.scale(gradient, tf.constant(1.0 / factor, tf.float32))
