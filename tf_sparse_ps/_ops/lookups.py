"""Lookups of rows and of bags of rows, and their gradients."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from tf_sparse_ps._ops.library import lib


class Lookup(NamedTuple):
    """The result of `lookup`."""

    rows: list[tf.Tensor]  # N of float32[*ids.shape, dim]
    keys: list[tf.Tensor]  # T of int64[u_t]: unique keys of each table
    inverses: list[tf.Tensor]  # N of int32[*ids.shape]: positions in the keys


def lookup(
    ids: Sequence[tf.Tensor],
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    carriers: Sequence[tf.Tensor],
    table_of: Sequence[int],
    *,
    in_step: bool = False,
) -> Lookup:
    """Looks up the rows of the ids of N features in T tables of one group, all in one step.

    An absent key has its initial row; nothing is written. Features of the same table are deduped together.

    Args:
        ids: The ids of each feature, N of int64 of any shape.
        paths: The paths of the tables, T scalar strings.
        uuids: The uuids of the tables, T scalar strings.
        carriers: The carriers of the tables, T of float32[0, dim]. Their gradients are
            `tf.IndexedSlices(values=float32[u_t, dim], indices=int64[u_t])`. The gradient of a bounded table has a
            dense shape (`set_row_limit`). Other gradients have none, so code that would make them dense fails.
        table_of: The position of the table of each feature in `paths`, N integers.
        in_step: Whether a step of the tables follows. Then the error about a key may be left to the step
            (`allow_objections`), and the rows are zeros.

    Raises:
        InvalidArgumentError: A key is outside a bounded table, a carrier has another width, or the tables belong to
            several groups.
        NotFoundError: A group or table does not exist.
        FailedPreconditionError: A table has another uuid.
    """
    rows, keys, inverses = lib.tsps_lookup(ids, paths, uuids, carriers, table_of=list(table_of), in_step=in_step)
    _set_widths(rows, carriers, table_of)
    return Lookup(rows, keys, inverses)


def segment_sum(
    grads: Sequence[tf.Tensor], inverses: Sequence[tf.Tensor], keys: Sequence[tf.Tensor], table_of: Sequence[int]
) -> list[tf.Tensor]:
    """Sums the gradients of rows per unique key: T of float32[u_t, dim]. This is the backward pass of `lookup`.

    Args:
        grads: The gradients of the rows, N of float32[*ids.shape, dim].
        inverses: The `inverses` of `lookup`, N of int32[*ids.shape].
        keys: The `keys` of `lookup`, T of int64[u_t].
        table_of: The position of the table of each feature in `keys`, N integers.
    """
    sums: list[tf.Tensor] = lib.tsps_segment_sum(grads, inverses, keys, table_of=list(table_of))
    return sums


class PooledLookup(NamedTuple):
    """The result of `pooled_lookup`."""

    pooled: list[tf.Tensor]  # N of float32[bags_f, dim]
    keys: list[tf.Tensor]  # T of int64[u_t]: unique keys of each table
    inverses: list[tf.Tensor]  # N of int32[n_f]: positions in the keys


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
        ids: The ids of each feature, N of int64[n_f].
        splits: The limits of the bags, N of int64[bags_f + 1]. Bag b has the ids [splits[b], splits[b + 1]).
        weights: The weights of the ids, N of float32[n_f], or float32[0] if every weight is 1.
        paths: See `lookup`; likewise uuids, carriers, table_of and in_step.
        combiners: The combiner of each feature, N of "sum", "mean" or "sqrtn".

    Raises:
        InvalidArgumentError: See `lookup`; or the splits decrease or do not end at n_f, or the number of weights is
            wrong.
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
    """The result of `unique`."""

    inverses: list[tf.Tensor]  # N of int32[*ids.shape]: positions in the keys
    keys: list[tf.Tensor]  # T of int64[u_t]: unique keys of each table


def unique(ids: Sequence[tf.Tensor], table_of: Sequence[int], n_tables: int) -> Unique:
    """Returns the unique keys per table of the ids of N features, in order of first occurrence, as in `lookup`.

    Args:
        ids: The ids of each feature, N of int64 of any shape. Every int64 is accepted.
        table_of: The number of the table of each feature, N integers below `n_tables`.
        n_tables: The number of tables, T.
    """
    return Unique(*lib.tsps_unique(ids, T=n_tables, table_of=list(table_of)))


def read_rows(
    ids: Sequence[tf.Tensor],
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    carriers: Sequence[tf.Tensor],
    table_of: Sequence[int],
    *,
    in_step: bool = False,
) -> list[tf.Tensor]:
    """Looks up the rows of ids as `lookup` does, without their unique keys: N of float32[*ids.shape, dim].

    It is the faster lookup where no gradient is taken. If one is taken, the backward pass finds the unique keys.

    Args:
        ids: See `lookup`; likewise paths, uuids, carriers and table_of.
        in_step: Whether a step of the tables follows. Then the step reports an error of an earlier lookup
            (`allow_objections`).

    Raises:
        InvalidArgumentError, NotFoundError, FailedPreconditionError: See `lookup`.
    """
    rows: list[tf.Tensor] = lib.tsps_read_rows(ids, paths, uuids, carriers, table_of=list(table_of), in_step=in_step)
    _set_widths(rows, carriers, table_of)
    return rows


def gather_rows(
    unique_ids: Unique,
    rows: Sequence[tf.Tensor],
    carriers: Sequence[tf.Tensor],
    table_of: Sequence[int],
    uuids: Sequence[str] = (),
) -> list[tf.Tensor]:
    """Gathers the rows of all ids from the rows of the unique keys: N of float32[*ids.shape, dim], as `Lookup.rows`.

    Args:
        unique_ids: The result of `unique`.
        rows: The rows of the unique keys, T of float32[u_t, dim]. No gradient reaches them.
        carriers: The carriers of the tables, T of float32[0, dim]. Their gradients are those of `lookup`.
        table_of: The position of the table of each feature in `rows`, N integers.
        uuids: The uuids of the tables, if their keys may be counted (`set_counted`).

    Raises:
        InvalidArgumentError: Rows or carriers have another shape, or an inverse is out of range.
    """
    gathered: list[tf.Tensor] = lib.tsps_gather_rows(
        unique_ids.inverses, rows, unique_ids.keys, carriers, table_of=list(table_of), uuids=list(uuids)
    )
    _set_widths(gathered, carriers, table_of)
    return gathered


def pool_rows(
    unique_ids: Unique,
    splits: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    rows: Sequence[tf.Tensor],
    carriers: Sequence[tf.Tensor],
    table_of: Sequence[int],
    combiners: Sequence[str],
    uuids: Sequence[str] = (),
) -> list[tf.Tensor]:
    """Combines the rows of each bag from the rows of the unique keys: N of float32[bags_f, dim], as `pooled_lookup`.

    Gradients reach carriers and weights.

    Args:
        unique_ids: The result of `unique` for ids int64[n_f].
        splits: See `pooled_lookup`; likewise weights and combiners.
        rows: See `gather_rows`; likewise carriers, table_of and uuids.

    Raises:
        InvalidArgumentError: See `gather_rows` and `pooled_lookup`.
    """
    pooled: list[tf.Tensor] = lib.tsps_pool_rows(
        unique_ids.inverses,
        splits,
        weights,
        rows,
        unique_ids.keys,
        carriers,
        table_of=list(table_of),
        combiners=list(combiners),
        uuids=list(uuids),
    )
    _set_widths(pooled, carriers, table_of)
    return pooled


def _set_widths(rows: Sequence[tf.Tensor], carriers: Sequence[tf.Tensor], table_of: Sequence[int]) -> None:
    """Sets the last dimension, which the shape function does not know if the tables of a call differ in width."""
    if len(carriers) == 1 or tf.executing_eagerly():
        return
    for row, table in zip(rows, table_of, strict=True):
        if row.shape.rank is not None:
            row.set_shape([None] * (row.shape.rank - 1) + [carriers[table].shape[-1]])


# TensorFlow's functions that differentiate the body of a construct from outside of it (2.15 and 2.21), by the name of
# the construct.
_CONSTRUCTS = {
    ("cond_v2", "_IfGrad"): "tf.cond",
    ("cond_v2", "_CaseGrad"): "tf.switch_case",
    ("while_v2", "_WhileGrad"): "tf.while_loop or tf.map_fn",
    ("custom_gradient", "inner_recompute_grad"): "tf.recompute_grad",
}


def refuse_constructs() -> None:
    """Raises ValueError if TensorFlow differentiates the body of a construct from outside of it.

    TensorFlow would fail on the IndexedSlices, with a message that does not name the cause. Only the call stack shows
    the case, because the graphs of nested tf.functions look the same inside and outside of a construct. A tape within
    the body works, and does not call the functions above.
    """
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "").rpartition(".")[2]
        construct = _CONSTRUCTS.get((module, frame.f_code.co_name))
        if construct is not None:
            raise ValueError(
                f"A tf_sparse_ps lookup inside {construct} cannot be differentiated from outside of it. "
                "Look up the rows before it and pass them in, or open the GradientTape inside."
            )
        frame = frame.f_back


@tf.RegisterGradient("TspsLookup")
def _lookup_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    keys, inverses = op.outputs[n : n + t], op.outputs[n + t :]
    sums = segment_sum([tf.convert_to_tensor(grad) for grad in grads[:n]], inverses, keys, table_of)
    uuids = _uuids(op.inputs[n + t : n + 2 * t])
    return [None] * (n + 2 * t) + _slices(sums, keys, inverses, uuids, table_of)


@tf.RegisterGradient("TspsPooledLookup")
def _pooled_lookup_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    combiners = _names(op, "combiners")
    splits, weights = op.inputs[n : 2 * n], op.inputs[2 * n : 3 * n]
    tables = op.inputs[3 * n :]
    keys, inverses = op.outputs[n : n + t], op.outputs[n + t :]
    common = ([tf.convert_to_tensor(grad) for grad in grads[:n]], splits, weights, inverses, keys)
    attributes = {"table_of": table_of, "combiners": combiners}
    sums = lib.tsps_pooled_sum(*common, **attributes)
    weight_grads: list[Any] = [None] * n
    needed = [_may_be_differentiated(op, 2 * n + f) for f in range(n)]
    if any(needed):
        all_grads = lib.tsps_pooled_weight_grad(*common, tables[:t], tables[t : 2 * t], tables[2 * t :], **attributes)
        weight_grads = [grad if is_needed else None for grad, is_needed in zip(all_grads, needed, strict=True)]
    slices = _slices(sums, keys, inverses, _uuids(tables[t : 2 * t]), table_of)
    return [None] * (2 * n) + weight_grads + [None] * (2 * t) + slices


def _names(op: Any, attribute: str) -> list[str]:
    # The attribute is text in a graph, and bytes in eager mode.
    return [tf.compat.as_str(name) for name in op.get_attr(attribute)]


def _uuids(tensors: Sequence[tf.Tensor]) -> list[str]:
    """Returns the uuids of tables; "" for one that is not known when the gradient is built."""
    values = [tf.get_static_value(tensor) for tensor in tensors]
    return ["" if value is None else tf.compat.as_str(np.asarray(value).item()) for value in values]


@tf.RegisterGradient("TspsReadRows")
def _read_rows_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    inverses, keys = unique(op.inputs[:n], table_of, t)
    sums = segment_sum([tf.convert_to_tensor(grad) for grad in grads], inverses, keys, table_of)
    uuids = _uuids(op.inputs[n + t : n + 2 * t])
    return [None] * (n + 2 * t) + _slices(sums, keys, inverses, uuids, table_of)


tf.no_gradient("TspsUnique")


@tf.RegisterGradient("TspsGatherRows")
def _gather_rows_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    inverses, keys = op.inputs[:n], op.inputs[n + t : n + 2 * t]
    sums = segment_sum([tf.convert_to_tensor(grad) for grad in grads], inverses, keys, table_of)
    return [None] * (n + 2 * t) + _slices(sums, keys, inverses, _names(op, "uuids"), table_of)


@tf.RegisterGradient("TspsPoolRows")
def _pool_rows_gradient(op: Any, *grads: Any) -> list[Any]:
    refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    inverses, splits, weights = op.inputs[:n], op.inputs[n : 2 * n], op.inputs[2 * n : 3 * n]
    rows, keys = op.inputs[3 * n : 3 * n + t], op.inputs[3 * n + t : 3 * n + 2 * t]
    common = ([tf.convert_to_tensor(grad) for grad in grads], splits, weights, inverses, keys)
    attributes = {"table_of": table_of, "combiners": _names(op, "combiners")}
    sums = lib.tsps_pooled_sum(*common, **attributes)
    weight_grads: list[Any] = [None] * n
    needed = [_may_be_differentiated(op, 2 * n + f) for f in range(n)]
    if any(needed):
        all_grads = lib.tsps_pool_rows_weight_grad(*common, rows, **attributes)
        weight_grads = [grad if is_needed else None for grad, is_needed in zip(all_grads, needed, strict=True)]
    slices = _slices(sums, keys, inverses, _names(op, "uuids"), table_of)
    return [None] * (2 * n) + weight_grads + [None] * (2 * t) + slices


@tf.RegisterGradient("TspsPoolRowsWeightGrad")
@tf.RegisterGradient("TspsSegmentSum")
@tf.RegisterGradient("TspsPooledSum")
@tf.RegisterGradient("TspsPooledWeightGrad")
def _second_gradient(op: Any, *_: Any) -> NoReturn:
    raise ValueError(
        f"the gradient of a tf_sparse_ps table cannot be differentiated again ({op.type}). Take the inner gradient "
        "with respect to the looked-up rows, not to the layer's weights: `rows = layer(ids)` outside of the inner "
        "GradientTape, `inner.watch(rows)`, `inner.gradient(loss, rows)`"
    )


# Facts about tables of this process, by uuid: the number of keys of bounded tables, and the tables whose keys are
# counted.
_limits: dict[str, int] = {}
_counted: set[str] = set()


def set_row_limit(uuid: str, limit: int | None) -> None:
    """Records that the keys of a table are 0 .. limit - 1. With None, forgets a table that was removed."""
    if limit is None:
        _limits.pop(uuid, None)
    else:
        _limits[uuid] = limit


def set_counted(uuid: str, counted: bool) -> None:
    """Determines whether backward passes count how often the keys of a table occur (`take_occurrences`)."""
    if counted:
        _counted.add(uuid)
    else:
        _counted.discard(uuid)


def take_occurrences(keys: tf.Tensor, uuid: str) -> tf.Tensor:
    """Returns the counts of a step's keys on this rank, int32[n], and forgets all that was counted for the table.

    A count is 1, the number of ranks, plus 65536 times the number of ids with the key in the lookups that were
    differentiated since the last step, at most 255 (cc/core/gradients/key_count.h). Counts are added over the ranks.

    Args:
        keys: The unique keys, int64[n].
        uuid: The uuid of the table.
    """
    return lib.tsps_take_occurrences(keys, uuid=uuid)


def _slices(
    sums: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    inverses: Sequence[tf.Tensor],
    uuids: Sequence[str],
    table_of: Sequence[int],
) -> list[Any]:
    """Returns the gradients of the carriers of T tables. `uuids`: those of all tables, or none."""
    slices: list[Any] = [None] * len(keys)  # a table without a feature has no gradient
    for t in set(table_of):
        uuid = uuids[t] if uuids else ""
        if uuid in _counted:
            # Not beside the sums, which the op would delay: a step took 1.12 times as long then.
            with tf.control_dependencies([sums[t]]):
                of_table = [inverses[f] for f, table in enumerate(table_of) if table == t]
                own_keys = lib.tsps_count_occurrences(keys[t], of_table, uuid=uuid)
        else:
            # The backward graph of a tf.function may not return a tensor of the forward graph, and TensorFlow does not
            # capture the parts of IndexedSlices.
            own_keys = tf.identity(keys[t])
        slices[t] = tf.IndexedSlices(sums[t], own_keys, _dense_shape(sums[t], uuid))
    return slices


def _dense_shape(sums: tf.Tensor, uuid: str) -> tf.Tensor | None:
    """Returns the shape of the matrix of a bounded table, int64[2], or None for an unbounded table."""
    limit = _limits.get(uuid)
    if limit is None:
        return None
    width = sums.shape[1]
    if width is None:  # the tables of a collection differ in width
        return tf.stack([tf.constant(limit, tf.int64), tf.shape(sums, tf.int64)[1]])
    return tf.constant([limit, width], tf.int64)


def _may_be_differentiated(op: Any, index: int) -> bool:
    """Whether the program could ask for the gradient of the float input `index` of `op`.

    The gradient with respect to weights reads the table again, so it is left out if nobody can need it. In eager mode,
    the tape lists the inputs that it does not follow. In a graph, nobody needs the gradient if the input depends on
    constants only. Integers do not count as dependencies, because gradients do not pass through them.
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
        if not hasattr(source, "op"):  # a captured eager tensor
            return True
        if source.op.type == "Const":
            continue
        inputs = [
            tensor
            for tensor in source.op.inputs
            if tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype in (tf.resource, tf.variant)
        ]
        if not source.op.inputs:  # a placeholder, a captured value or a variable's handle
            return True
        pending.extend(inputs)
    return False
