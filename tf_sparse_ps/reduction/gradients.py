"""The gradients of one step, sorted by how they travel: of tables, of dense weights, and big sparse ones of others."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.reduction import clipping
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient

# Gradients of other layers that arrive as IndexedSlices travel dense when the variable is at most this big, and in the
# sparse ring otherwise.
_DENSIFY_UP_TO = 1 << 20
_WIDEST_ROW = 1 << 16  # that the sparse ring takes
_MARK = "_tsps_mean"
# What a table's own gradient is made of: behind these there is none of it.
_OWN_OPS = ("TspsSegmentSum", "TspsPooledSum", "TspsLookup", "TspsPooledLookup", "TspsUnique")
_OPS_LOOKED_AT = 256


@dataclasses.dataclass(frozen=True)
class Mean:
    """How a `DistributedGradientTape` has averaged.

    Attributes:
      weight: Of this rank.
      sums: Of the ranks' weights, for `rank_weight.check`.
    """

    weight: tf.Tensor
    sums: list[tf.Tensor]


def mark_averaged(gradient: Any, mean: Mean) -> None:
    """Says that a gradient is the ranks' mean already, as it comes from a `DistributedGradientTape`."""
    setattr(gradient, _MARK, mean)


def mean_of(gradient: Any) -> Mean | None:
    """How a gradient was averaged, or None: it is this rank's own."""
    return getattr(gradient, _MARK, None)


@dataclasses.dataclass
class TableGradient:
    """What the anchors of one table received. Of a table with rows on several devices: for one of them."""

    table: Any  # TableBinding
    slices: list[tf.IndexedSlices]
    merged: SparseGradient | None = None  # of several replicas, in place of `slices`

    @property
    def gradient(self) -> SparseGradient:
        """As one set of keys and rows."""
        if self.merged is not None:
            return self.merged
        if (cache := cache_of(self.table)) is not None:
            return self.on(cache.devices[0])
        return SparseGradient.of(self.slices, self.table.config.dim)

    def on(self, device: str) -> SparseGradient:
        """The same of a table with rows on devices, on one of them; keys come out unique."""
        with tf.device(device):
            found = SparseGradient.of(self.slices, self.table.config.dim)
        if not found.unique:
            cache = cache_of(self.table)
            assert cache is not None
            found = SparseGradient(*cache.merge(found.keys, found.rows, device))
        return dataclasses.replace(found, device=device)


@dataclasses.dataclass
class DenseGradient:
    """The gradient of a replicated weight."""

    variable: Any
    value: Any  # as it came: tensor, IndexedSlices when `big`, or None
    result: Any = None  # reduced
    sparse: bool = False  # it came as IndexedSlices

    @property
    def big(self) -> bool:
        """Whether it goes through the sparse ring."""
        return isinstance(self.value, tf.IndexedSlices)

    @property
    def to_average(self) -> bool:
        """Whether it goes through the dense ring."""
        return self.value is not None and not self.big and mean_of(self.value) is None

    @property
    def gradient(self) -> SparseGradient:
        """Of a big one: keys and rows."""
        width = tf.TensorShape(self.variable.shape[1:]).num_elements()
        return SparseGradient.of([self.value], width)

    @property
    def bytes(self) -> int:
        """Of a dense one.

        Raises:
          ValueError: The variable has no fixed shape.
        """
        if not tf.TensorShape(self.variable.shape).is_fully_defined():
            raise ValueError(
                f"variable {self.variable.name!r} has shape {self.variable.shape}, which is not fixed: its gradient "
                "cannot be averaged over ranks. Give it a shape without None"
            )
        return int(tf.TensorShape(self.variable.shape).num_elements()) * int(self.value.dtype.size)

    @property
    def signature(self) -> str:
        """What must be equal on all ranks."""
        kind = "none" if self.value is None else "sparse" if self.big else "dense"
        return f"{kind}{list(self.variable.shape)}"


def split(pairs: list[tuple[Any, Any]]) -> tuple[list[TableGradient], list[DenseGradient]]:
    """Takes tables' gradients out of the list, one entry per table, in the order of the tables' ordinals."""
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
                f"the gradient of table '{table.config.name}' must be tf.IndexedSlices, as the tape gives it. "
                f"Received: {gradient!r}. Something between tape and optimizer changed it: made dense, it would count "
                "every row as one that the batch has. Clip with the wrapped optimizer's clipnorm, clipvalue or "
                "global_clipnorm. To add up gradients of several batches, as tf.add_n would, put their parts together: "
                "tf.IndexedSlices(tf.concat([a.values, b.values], 0), tf.concat([a.indices, b.indices], 0)); rows of "
                "one key are added up in the step."
            )
        refuse_reduced(gradient, table)
        entry.slices.append(gradient)
    return sorted(tables.values(), key=lambda entry: entry.table.ordinal), dense


def _dense_or_big(gradient: Any, variable: Any) -> Any:
    shape = tf.TensorShape(variable.shape)
    if not isinstance(gradient, tf.IndexedSlices):
        # A function of Python or NumPy in the backward pass gives a tensor that does not know its shape.
        unknown = tf.is_tensor(gradient) and not gradient.shape.is_fully_defined() and mean_of(gradient) is None
        return tf.ensure_shape(gradient, shape) if unknown else gradient
    wide = shape[1:].num_elements() > _WIDEST_ROW
    if shape.num_elements() > _DENSIFY_UP_TO and not wide and gradient.values.dtype == tf.float32 and shape.rank >= 1:
        return gradient
    # Through the variable's shape: the slices may not know theirs.
    slices = tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(shape.as_list(), tf.int64))
    return tf.ensure_shape(tf.convert_to_tensor(slices), shape)


def refuse_reduced(gradient: tf.IndexedSlices, table: Any) -> None:
    """Refuses a table's gradient that another library has gathered, where it can be seen: in a graph."""
    if tf.executing_eagerly():
        return
    # Tensors, each with the calls of functions in whose bodies it is, outermost first.
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
                f"the gradient of table '{table.config.name}' has been reduced by Horovod already ({op.type}), which "
                "loses the number of ranks of each key. Use tsps.DistributedGradientTape in place of Horovod's."
            )
        if (body := _keras.body_of_call(op)) is not None:
            pending.append((body.outputs[tensor.value_index], (*calls, op)))
        elif calls and (argument := _argument(tensor, calls[-1])) is not None:
            pending.append((argument, calls[:-1]))
        else:
            pending.extend((one, calls) for one in op.inputs)


def _argument(tensor: tf.Tensor, call: tf.Operation) -> tf.Tensor | None:
    """What a call gives for a tensor, if that is a parameter in the body of its function."""
    parameters = _keras.body_of_call(call).inputs
    return next((given for given, one in zip(call.inputs, parameters, strict=True) if one.name == tensor.name), None)


def take_back(dense: list[DenseGradient], averaged: list[tf.Tensor], reduced: list[SparseGradient]) -> None:
    """Puts the rings' outputs to the gradients that went in."""
    ring = iter(averaged)
    for one in dense:
        if one.to_average:
            one.result = next(ring)
        elif not one.big:
            one.result = one.value  # None, or averaged by a DistributedGradientTape
    big = [one for one in dense if one.big]
    for one, merged in zip(big, reduced, strict=True):
        rows = tf.reshape(merged.rows, [-1, *one.variable.shape[1:]])
        one.result = tf.IndexedSlices(rows, merged.keys, tf.constant(list(one.variable.shape), tf.int64))


def unscale(gradient: Any, factor: float) -> Any:
    """The gradient without Keras's loss scale."""
    return gradient if factor == 1.0 else clipping.scale(gradient, tf.constant(1.0 / factor, tf.float32))
