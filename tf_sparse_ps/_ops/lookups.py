"""Lookups, and their gradients."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from tf_sparse_ps._ops.library import lib


class Lookup(NamedTuple):
    """What `lookup` returns."""

    rows: list[tf.Tensor]  # N of float32[*ids.shape, dim]
    keys: list[tf.Tensor]  # T of int64[u_t]: the unique keys of a table
    inverses: list[tf.Tensor]  # N of int32[*ids.shape]: positions in keys


def lookup(
    ids: Sequence[tf.Tensor],
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    carriers: Sequence[tf.Tensor],
    table_of: Sequence[int],
    *,
    in_step: bool = False,
) -> Lookup:
    """Rows of the ids of N features, from T tables of one group, as of one step.

    Absent keys read their initial row; nothing is written. Features of one table are deduped together.

    Args:
        ids: N of int64, any shape.
        paths: T scalar strings.
        uuids: T scalar strings.
        carriers: T of float32[0, dim]. Their gradients are `tf.IndexedSlices(values=float32[u_t, dim],
            indices=int64[u_t])`. Their dense shape is that of a bounded table which `set_row_limit` was told of; of
            others there is none, and whatever would make them dense fails by name.
        table_of: N positions in paths.
        in_step: a step of the tables follows, to which the error about a key may be left (`allow_objections`). Rows are
            then zeros.

    Raises:
        InvalidArgumentError: a key outside a bounded table, carriers of another width, tables of two groups.
        NotFoundError: no such group or table.
        FailedPreconditionError: the table has another uuid.
    """
    rows, keys, inverses = lib.tsps_lookup(ids, paths, uuids, carriers, table_of=list(table_of), in_step=in_step)
    _set_widths(rows, carriers, table_of)
    return Lookup(rows, keys, inverses)


def segment_sum(
    grads: Sequence[tf.Tensor], inverses: Sequence[tf.Tensor], keys: Sequence[tf.Tensor], table_of: Sequence[int]
) -> list[tf.Tensor]:
    """Sums gradients of rows per unique key: T of float32[u_t, dim]. The backward pass of `lookup`.

    Args:
        grads: N of float32[*ids.shape, dim].
        inverses: N of int32[*ids.shape], from `lookup`.
        keys: T of int64[u_t], from `lookup`.
        table_of: N positions in keys.
    """
    sums: list[tf.Tensor] = lib.tsps_segment_sum(grads, inverses, keys, table_of=list(table_of))
    return sums


class PooledLookup(NamedTuple):
    """What `pooled_lookup` returns."""

    pooled: list[tf.Tensor]  # N of float32[bags_f, dim]
    keys: list[tf.Tensor]  # T of int64[u_t]
    inverses: list[tf.Tensor]  # N of int32[n_f]


def pooled_lookup(
    ids: Sequence[tf.Tensor],
    splits: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    carriers: Sequence[tf.Tensor],
    table_of: Sequence[int],
    combiners: Sequence[str],
    *,
    in_step: bool = False,
) -> PooledLookup:
    """Looks up bags of ids and combines each bag's rows, as `tf.nn.embedding_lookup_sparse` does.

    An empty bag gives zeros. Gradients reach carriers, as in `lookup`, and weights.

    Args:
        ids: N of int64[n_f].
        splits: N of int64[bags_f + 1]; bag b is items [splits[b], splits[b + 1]).
        weights: N of float32[n_f], or float32[0] where every weight is 1.
        paths: T scalar strings.
        uuids: T scalar strings.
        carriers: T of float32[0, dim].
        table_of: N positions in paths.
        combiners: N of "sum", "mean", "sqrtn".
        in_step: as `lookup`.

    Raises:
        InvalidArgumentError: as `lookup`; splits that decrease or do not end at n_f; another number of weights.
    """
    pooled, keys, inverses = lib.tsps_pooled_lookup(
        ids,
        splits,
        weights,
        paths,
        uuids,
        carriers,
        table_of=list(table_of),
        combiners=list(combiners),
        in_step=in_step,
    )
    _set_widths(pooled, carriers, table_of)
    return PooledLookup(pooled, keys, inverses)


class Unique(NamedTuple):
    """What `unique` returns."""

    inverses: list[tf.Tensor]  # N of int32[*ids.shape]: positions in keys
    keys: list[tf.Tensor]  # T of int64[u_t]


def unique(ids: Sequence[tf.Tensor], table_of: Sequence[int], n_tables: int) -> Unique:
    """The unique keys of N features' ids per table, in order of first occurrence, as `lookup` makes them.

    Args:
        ids: N of int64, any shape. Any int64 is a key here.
        table_of: N positions below n_tables.
        n_tables: T.
    """
    return Unique(*lib.tsps_unique(ids, T=n_tables, table_of=list(table_of)))


def read_rows(
    keys: Sequence[tf.Tensor], paths: Sequence[tf.Tensor], uuids: Sequence[tf.Tensor], carriers: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Rows of unique keys from T tables of one group, as of one step: T of float32[u_t, dim].

    No gradient passes through it; `gather_rows` and `pool_rows` hand theirs to their carriers.

    Args:
        keys: T of int64[u_t].
        paths: T scalar strings.
        uuids: T scalar strings.
        carriers: T of float32[0, dim].

    Raises:
        InvalidArgumentError: as `lookup`.
        NotFoundError: as `lookup`.
        FailedPreconditionError: as `lookup`.
    """
    rows: list[tf.Tensor] = lib.tsps_read_rows(keys, paths, uuids, carriers)
    return rows


def gather_rows(
    found: Unique, rows: Sequence[tf.Tensor], carriers: Sequence[tf.Tensor], table_of: Sequence[int]
) -> list[tf.Tensor]:
    """What `lookup` returns as rows, from rows of the unique keys: N of float32[*ids.shape, dim].

    Args:
        found: from `unique`.
        rows: T of float32[u_t, dim], in the order of the keys. No gradient reaches them.
        carriers: T of float32[0, dim]. Their gradients are those of `lookup`.
        table_of: N positions in rows.

    Raises:
        InvalidArgumentError: rows or carriers of another shape; inverses out of range.
    """
    gathered: list[tf.Tensor] = lib.tsps_gather_rows(
        found.inverses, rows, found.keys, carriers, table_of=list(table_of)
    )
    _set_widths(gathered, carriers, table_of)
    return gathered


def pool_rows(
    found: Unique,
    splits: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    rows: Sequence[tf.Tensor],
    carriers: Sequence[tf.Tensor],
    table_of: Sequence[int],
    combiners: Sequence[str],
) -> list[tf.Tensor]:
    """What `pooled_lookup` returns as pooled, from rows of the unique keys: N of float32[bags_f, dim].

    Gradients reach carriers and weights.

    Args:
        found: from `unique`, of ids int64[n_f].
        splits: as `pooled_lookup`.
        weights: as `pooled_lookup`.
        rows: T of float32[u_t, dim], in the order of the keys. No gradient reaches them.
        carriers: T of float32[0, dim].
        table_of: N positions in rows.
        combiners: N of "sum", "mean", "sqrtn".

    Raises:
        InvalidArgumentError: as `gather_rows`, and as `pooled_lookup`.
    """
    pooled: list[tf.Tensor] = lib.tsps_pool_rows(
        found.inverses,
        splits,
        weights,
        rows,
        found.keys,
        carriers,
        table_of=list(table_of),
        combiners=list(combiners),
    )
    _set_widths(pooled, carriers, table_of)
    return pooled


def _set_widths(rows: Sequence[tf.Tensor], carriers: Sequence[tf.Tensor], table_of: Sequence[int]) -> None:
    """Sets the last dimension, which the shape function cannot tell when tables of several widths meet in one call."""
    if len(carriers) == 1 or tf.executing_eagerly():
        return
    for row, table in zip(rows, table_of, strict=True):
        if row.shape.rank is not None:
            row.set_shape([None] * (row.shape.rank - 1) + [carriers[table].shape[-1]])


# TensorFlow's functions that differentiate the body of a construct from outside of it (2.15 and 2.21), and its name.
_CONSTRUCTS = {
    ("cond_v2", "_IfGrad"): "tf.cond",
    ("cond_v2", "_CaseGrad"): "tf.switch_case",
    ("while_v2", "_WhileGrad"): "tf.while_loop or tf.map_fn",
    ("custom_gradient", "inner_recompute_grad"): "tf.recompute_grad",
}


def refuse_constructs() -> None:
    """Raises where TensorFlow would fail on IndexedSlices with a text that names nothing.

    Only the call stack tells: inside a nested tf.function all graphs look as they do outside. A tape in the body is
    fine, and is not among the callers named above.
    """
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "").rpartition(".")[2]
        construct = _CONSTRUCTS.get((module, frame.f_code.co_name))
        if construct is not None:
            raise ValueError(
                f"A tf_sparse_ps lookup inside {construct} cannot be differentiated from outside of it. "
                "Look up before it and pass the rows in, or open the GradientTape inside."
            )
        frame = frame.f_back


@tf.RegisterGradient("TspsLookup")
def _lookup_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    keys, inverses = op.outputs[n : n + t], op.outputs[n + t :]
    sums = segment_sum([tf.convert_to_tensor(grad) for grad in grads[:n]], inverses, keys, table_of)
    return [None] * (n + 2 * t) + _slices(sums, keys, op.inputs[n + t : n + 2 * t], table_of)


@tf.RegisterGradient("TspsPooledLookup")
def _pooled_lookup_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    combiners = _combiners(op)
    splits, weights = op.inputs[n : 2 * n], op.inputs[2 * n : 3 * n]
    tables = op.inputs[3 * n :]
    keys, inverses = op.outputs[n : n + t], op.outputs[n + t :]
    common = ([tf.convert_to_tensor(grad) for grad in grads[:n]], splits, weights, inverses, keys)
    attributes = {"table_of": table_of, "combiners": combiners}
    sums = lib.tsps_pooled_sum(*common, **attributes)
    weight_grads: list[Any] = [None] * n
    wanted = [_may_be_differentiated(op, 2 * n + f) for f in range(n)]
    if any(wanted):
        every = lib.tsps_pooled_weight_grad(*common, tables[:t], tables[t : 2 * t], tables[2 * t :], **attributes)
        weight_grads = [grad if want else None for grad, want in zip(every, wanted, strict=True)]
    return [None] * (2 * n) + weight_grads + [None] * (2 * t) + _slices(sums, keys, tables[t : 2 * t], table_of)


def _combiners(op: Any) -> list[str]:
    # As text in a graph, as bytes in eager mode.
    return [tf.compat.as_str(combiner) for combiner in op.get_attr("combiners")]


tf.no_gradient("TspsUnique")
tf.no_gradient("TspsReadRows")


@tf.RegisterGradient("TspsGatherRows")
def _gather_rows_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    inverses, keys = op.inputs[:n], op.inputs[n + t : n + 2 * t]
    sums = segment_sum([tf.convert_to_tensor(grad) for grad in grads], inverses, keys, table_of)
    return [None] * (n + 2 * t) + _slices(sums, keys, None, table_of)


@tf.RegisterGradient("TspsPoolRows")
def _pool_rows_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    inverses, splits, weights = op.inputs[:n], op.inputs[n : 2 * n], op.inputs[2 * n : 3 * n]
    rows, keys = op.inputs[3 * n : 3 * n + t], op.inputs[3 * n + t : 3 * n + 2 * t]
    common = ([tf.convert_to_tensor(grad) for grad in grads], splits, weights, inverses, keys)
    attributes = {"table_of": table_of, "combiners": _combiners(op)}
    sums = lib.tsps_pooled_sum(*common, **attributes)
    weight_grads: list[Any] = [None] * n
    wanted = [_may_be_differentiated(op, 2 * n + f) for f in range(n)]
    if any(wanted):
        every = lib.tsps_pool_rows_weight_grad(*common, rows, **attributes)
        weight_grads = [grad if want else None for grad, want in zip(every, wanted, strict=True)]
    return [None] * (2 * n) + weight_grads + [None] * (2 * t) + _slices(sums, keys, None, table_of)


@tf.RegisterGradient("TspsPoolRowsWeightGrad")
@tf.RegisterGradient("TspsSegmentSum")
@tf.RegisterGradient("TspsPooledSum")
@tf.RegisterGradient("TspsPooledWeightGrad")
def _second_gradient(op: Any, *_: Any) -> NoReturn:
    raise ValueError(
        f"the gradient of a tf_sparse_ps table cannot be differentiated once more ({op.type}). Take the inner gradient "
        "with respect to what was looked up, not to the layer's weights: `rows = layer(ids)` outside of the inner "
        "GradientTape, `inner.watch(rows)`, `inner.gradient(loss, rows)`"
    )


# Of bounded tables of this process, by uuid.
_limits: dict[str, int] = {}


def set_row_limit(uuid: str, limit: int | None) -> None:
    """Says that the keys of a table are 0 .. limit - 1; None: that the table is gone."""
    if limit is None:
        _limits.pop(uuid, None)
    else:
        _limits[uuid] = limit


def _slices(
    sums: Sequence[tf.Tensor], keys: Sequence[tf.Tensor], uuids: Sequence[tf.Tensor] | None, table_of: Sequence[int]
) -> list[Any]:
    # tf.identity: a tf.function's backward graph may not return a tensor of the forward graph, and parts of
    # IndexedSlices are not captured by themselves. Of a table without a feature not even the width is known.
    return [
        tf.IndexedSlices(sums[t], tf.identity(keys[t]), _dense_shape(sums[t], uuids and uuids[t]))
        if t in table_of
        else None
        for t in range(len(keys))
    ]


def _dense_shape(sums: tf.Tensor, uuid: tf.Tensor | None) -> tf.Tensor | None:
    """Of the matrix that a table's gradient is a part of, int64[2]; None: the table is none."""
    value = None if uuid is None else tf.get_static_value(uuid)
    limit = None if value is None else _limits.get(tf.compat.as_str(np.asarray(value).item()))
    if limit is None:
        return None
    width = sums.shape[1]
    if width is None:  # of a collection's tables, which differ
        return tf.stack([tf.constant(limit, tf.int64), tf.shape(sums, tf.int64)[1]])
    return tf.constant([limit, width], tf.int64)


def _may_be_differentiated(op: Any, index: int) -> bool:
    """Whether someone could ask for the gradient of the float input `index` of `op`.

    The gradient with respect to weights reads the table once more, so it is left out where it is certain that nobody
    wants it. Eager: the tape says which inputs it does not follow. In a graph: when everything that floats into the
    input comes from constants (gradients do not pass through integers).
    """
    tensor = op.inputs[index]
    if tensor.shape.rank == 1 and tensor.shape[0] == 0:
        return False
    if hasattr(tensor, "numpy") and tf.executing_eagerly():
        return index not in (getattr(op, "skip_input_indices", None) or ())
    pending, seen = [tensor], set()
    while pending:
        source = pending.pop()
        if source.ref() in seen:
            continue
        seen.add(source.ref())
        if not hasattr(source, "op"):  # an eager tensor, captured
            return True
        if source.op.type == "Const":
            continue
        inputs = [
            one
            for one in source.op.inputs
            if one.dtype.is_floating or one.dtype.is_complex or one.dtype in (tf.resource, tf.variant)
        ]
        if not source.op.inputs:  # a placeholder, a captured value, a variable's handle
            return True
        pending.extend(inputs)
    return False
