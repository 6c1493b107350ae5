"""The TensorFlow ops of `_ops_lib.so`, typed, and their gradients.

`docs/ops.md` is the reference. `T` tables and `N` features per call; `table_of[f]` is the position of f's table.
A table is named by two scalar strings: its path `<group directory>/<table folder>` and its uuid ("" accepts any).
A carrier is a `float32[0, dim]` tensor, in practice the value of a layer's anchor weight: it carries the row width to
shape inference, and the gradient that arrives at it is the table's sparse gradient.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

TENSORFLOW_RANGE = ((2, 15), (2, 21))


def check_tensorflow_version(found: str) -> None:
    """Refuses a TensorFlow outside the supported range.

    Raises:
        ImportError: names the version found and the range.
    """
    low, high = (".".join(map(str, bound)) for bound in TENSORFLOW_RANGE)
    try:
        major, minor = (int(part) for part in found.split(".")[:2])
    except ValueError:
        major, minor = -1, -1
    if not TENSORFLOW_RANGE[0] <= (major, minor) <= TENSORFLOW_RANGE[1]:
        raise ImportError(f"tf_sparse_ps works with TensorFlow {low} to {high}; found TensorFlow {found}")


def _load() -> Any:
    check_tensorflow_version(tf.__version__)
    library = Path(__file__).with_name("_ops_lib.so")
    if not library.exists():
        raise ImportError(f"{library} is missing: build it with `make build`, or install the wheel")
    try:
        return tf.load_op_library(str(library))
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"{library} does not load into TensorFlow {tf.__version__}; one wheel serves every TensorFlow from "
            f"{'.'.join(map(str, TENSORFLOW_RANGE[0]))} to {'.'.join(map(str, TENSORFLOW_RANGE[1]))}: {error}"
        ) from error


_lib = _load()


# --- lookups ---------------------------------------------------------------------------------------------------------


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
) -> Lookup:
    """Rows of the ids of N features, from T tables of one group, as of one step.

    Absent keys read their initial row; nothing is written. Features of one table are deduped together.

    Args:
        ids: N of int64, any shape.
        paths: T scalar strings.
        uuids: T scalar strings.
        carriers: T of float32[0, dim]. Their gradients are `tf.IndexedSlices(values=float32[u_t, dim],
            indices=int64[u_t])` without a dense shape: whatever would make them dense fails by name.
        table_of: N positions in paths.

    Raises:
        InvalidArgumentError: a key outside a bounded table, carriers of another width, tables of two groups.
        NotFoundError: no such group or table.
        FailedPreconditionError: the table has another uuid.
    """
    rows, keys, inverses = _lib.tsps_lookup(ids, paths, uuids, carriers, table_of=list(table_of))
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
    sums: list[tf.Tensor] = _lib.tsps_segment_sum(grads, inverses, keys, table_of=list(table_of))
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

    Raises:
        InvalidArgumentError: as `lookup`; splits that decrease or do not end at n_f; another number of weights.
    """
    pooled, keys, inverses = _lib.tsps_pooled_lookup(
        ids, splits, weights, paths, uuids, carriers, table_of=list(table_of), combiners=list(combiners)
    )
    _set_widths(pooled, carriers, table_of)
    return PooledLookup(pooled, keys, inverses)


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


def _refuse_constructs() -> None:
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
    _refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    keys, inverses = op.outputs[n : n + t], op.outputs[n + t :]
    sums = segment_sum([tf.convert_to_tensor(grad) for grad in grads[:n]], inverses, keys, table_of)
    return [None] * (n + 2 * t) + _slices(sums, keys, table_of)


@tf.RegisterGradient("TspsPooledLookup")
def _pooled_lookup_gradient(op: Any, *grads: Any) -> list[Any]:
    _refuse_constructs()
    n, t = op.get_attr("N"), op.get_attr("T")
    table_of = list(op.get_attr("table_of"))
    # As text in a graph, as bytes in eager mode.
    combiners = [tf.compat.as_str(combiner) for combiner in op.get_attr("combiners")]
    splits, weights = op.inputs[n : 2 * n], op.inputs[2 * n : 3 * n]
    tables = op.inputs[3 * n :]
    keys, inverses = op.outputs[n : n + t], op.outputs[n + t :]
    common = ([tf.convert_to_tensor(grad) for grad in grads[:n]], splits, weights, inverses, keys)
    attributes = {"table_of": table_of, "combiners": combiners}
    sums = _lib.tsps_pooled_sum(*common, **attributes)
    weight_grads: list[Any] = [None] * n
    wanted = [_may_be_differentiated(op, 2 * n + f) for f in range(n)]
    if any(wanted):
        every = _lib.tsps_pooled_weight_grad(*common, tables[:t], tables[t : 2 * t], tables[2 * t :], **attributes)
        weight_grads = [grad if want else None for grad, want in zip(every, wanted, strict=True)]
    return [None] * (2 * n) + weight_grads + [None] * (2 * t) + _slices(sums, keys, table_of)


def _slices(sums: Sequence[tf.Tensor], keys: Sequence[tf.Tensor], table_of: Sequence[int]) -> list[Any]:
    # tf.identity: a tf.function's backward graph may not return a tensor of the forward graph, and parts of
    # IndexedSlices are not captured by themselves. Of a table without a feature not even the width is known.
    return [tf.IndexedSlices(sums[t], tf.identity(keys[t])) if t in table_of else None for t in range(len(keys))]


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


# --- gradients of several ranks, and the step ------------------------------------------------------------------------


class Merged(NamedTuple):
    """What `merge` returns."""

    keys: list[tf.Tensor]  # T of int64[u_t], unique
    grads: list[tf.Tensor]  # T of float32[u_t, dim]
    counts: list[tf.Tensor]  # T of int32[u_t]: in how many ranks a key occurred


def merge(
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    counts: Sequence[tf.Tensor],
    world_size: tf.Tensor | int,
    reduction: str,
) -> Merged:
    """Makes one gradient per key of the concatenated gradients of several ranks, adding in input order.

    Args:
        keys: T of int64[m_t].
        grads: T of float32[m_t, dim].
        counts: T of int32[m_t]: in how many ranks each key occurred.
        world_size: int32, number of ranks.
        reduction: "frequency" (sum / ranks in which the key occurred), "average" (sum / world_size), "sum", or "local"
            (the sum within one rank, of a layer that was called twice: counts come out as 1).
    """
    return Merged(*_lib.tsps_merge(keys, grads, counts, world_size, reduction=reduction))


def keep_if(
    weight: tf.Tensor, keys: Sequence[tf.Tensor], grads: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The same gradients, uncopied, if the weight is greater than 0; else none.

    Args:
        weight: float32 scalar.
        keys: T of int64[u_t].
        grads: T of float32[u_t, dim].
    """
    kept = _lib.tsps_keep_if(weight, keys, grads)
    return list(kept.kept_keys), list(kept.kept_grads)


def pack(keys: Sequence[tf.Tensor], grads: Sequence[tf.Tensor], counts: Sequence[tf.Tensor], wire: str) -> tf.Tensor:
    """Packs gradients for the wire: uint8[n], a size that occurs often (docs/format.md has the format).

    Args:
        keys: T of int64[u_t], unique within a table.
        grads: T of float32[u_t, dim].
        counts: T of int32[u_t]: in how many ranks each key occurred, 1 or more.
        wire: "float32", "bfloat16" or "float16": what gradients are rounded to, to nearest even.
    """
    return _lib.tsps_pack(keys, grads, counts, wire=wire)


def unpack_merge(buffers: tf.Tensor, world_size: tf.Tensor | int, reduction: str, dims: Sequence[int]) -> Merged:
    """Merges what several senders packed, in their order: `merge` of the gradients in `buffers`.

    Args:
        buffers: uint8[n], the senders' buffers one after another.
        world_size: int32, number of ranks, the divisor of "average".
        reduction: as in `merge`.
        dims: T widths of rows.

    Raises:
        DataLossError: a buffer is damaged, truncated or of another version.
        InvalidArgumentError: a sender has other tables.
    """
    merged = Merged(*_lib.tsps_unpack_merge(buffers, world_size, T=len(dims), reduction=reduction))
    for grads, dim in zip(merged.grads, dims, strict=True):
        grads.set_shape([None, dim])
    return merged


def join_exchange(
    path: str, folder: str, local_rank: int, local_size: int, rank: int, mergers: int, window: int
) -> None:
    """Makes this process one of the ranks that merge their gradients in shared memory, once per group and process.

    Args:
        path: of the group.
        folder: exists, private, for this run of the job alone.
        local_rank: 0 is the leader.
        local_size: ranks on this node.
        rank: among all ranks, for messages.
        mergers: how many of the node's ranks merge, from local rank 0 on; 0: all.
        window: bytes of shared memory for the contributions of one round, all ranks together; as many again may be
            used for what is merged from them. The same on all ranks.
    """
    _lib.tsps_join_exchange(path, folder, local_rank, local_size, rank, mergers, window)


def leave_exchange(path: str) -> None:
    """Tells the other ranks of the node that this process needs them no more: its end is then no death."""
    _lib.tsps_leave_exchange(path)


RING_COUNTERS = (
    "rows_shared",
    "bytes_shared",
    "rows_merged",
    "rounds",
    "waited_ns",
    "bytes_sent",
    "bytes_received",
    "sending_ns",
    "overlapped_ns",
)


def ring_info(path: str) -> tf.Tensor:
    """int64[9], `RING_COUNTERS` of this process: see `DistributedOptimizer.statistics`."""
    return _lib.tsps_ring_info(path)


def mark(value: tf.Tensor, name: str, phase: str) -> tf.Tensor:
    """The same tensor; the process's timeline learns that a collective begins, or ends, when it is there.

    Args:
        value: anything. It follows the data: no order with other ops is asked for.
        name: of the collective; its time counts as between nodes if ".nodes" is in it.
        phase: "begin" or "end".
    """
    return _lib.tsps_mark(value, name_of=name, phase=phase)


def start_timeline() -> None:
    """From now on this process records what its kernels and collectives do, up to 65,536 spans. Eager only."""
    _lib.tsps_timeline(action="start")


def stop_timeline() -> list[tuple[str, int, int]]:
    """What has been recorded: names, beginnings and ends, in nanoseconds of the monotonic clock. Eager only."""
    return [(name, begin, end) for name, begin, end in json.loads(bytes(_lib.tsps_timeline(action="stop").numpy()))]


def node_merge(
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    world_size: tf.Tensor | int,
    path: str,
    step: tf.Tensor,
    timeout_s: float,
    *,
    reduction: str,
    operation: str,
) -> Merged:
    """Merges the gradients of the node's ranks, in rank order, through shared memory. Every rank of the node calls it.

    Holds none of TensorFlow's threads while it waits for the others.

    Args:
        keys: T of int64[u_t], unique.
        grads: T of float32[u_t, dim].
        world_size: int32, the divisor of "average".
        path: of the group.
        step: int64, the step being made, the same on all ranks.
        timeout_s: how long to wait for one rank.
        reduction: "frequency", "average" or "sum".
        operation: a name, the same on all ranks, of at most 127 characters.

    Returns:
        On the leader the merged gradients; a function of the inputs, order of keys included. On other ranks no rows.

    Raises:
        UnavailableError: a rank died.
        DeadlineExceededError: a rank did not come; the text says what is known of it.
        AbortedError: a rank failed.
        InvalidArgumentError: ranks called with other operations, tables or widths.
    """
    return Merged(
        *_lib.tsps_node_merge(keys, grads, world_size, path, step, timeout_s, reduction=reduction, operation=operation)
    )


def node_apply(
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    world_size: tf.Tensor | int,
    path: str,
    step: tf.Tensor,
    timeout_s: float,
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    hyper: Sequence[tf.Tensor],
    *,
    reduction: str,
    operation: str,
) -> tf.Tensor:
    """`node_merge`, then `apply` by the leader, from where the merged gradients lie. Returns the step.

    Args:
        keys, grads, world_size, path, timeout_s, reduction, operation: as in `node_merge`.
        step: int64, the committed step + 1.
        paths: T scalar strings.
        uuids: T scalar strings.
        hyper: as in `apply`.

    Raises:
        OpError: as `node_merge` and `apply`. An error of the leader's is raised on the other ranks at their next call;
            training/failures.py tells it before.
    """
    return _lib.tsps_node_apply(
        keys,
        grads,
        world_size,
        path,
        step,
        timeout_s,
        paths,
        uuids,
        hyper,
        reduction=reduction,
        operation=operation,
    )


def ring_rounds(keys: Sequence[tf.Tensor], dims: Sequence[int], window: int, local_size: int) -> tf.Tensor:
    """int64[1]: in how many rounds this rank's gradients pass through its part of the window.

    Args:
        keys: T of int64[u_t].
        dims: T widths of rows.
        window: bytes, as in `join_exchange`.
        local_size: ranks on this node.
    """
    return _lib.tsps_ring_rounds(keys, dims=list(dims), window=window, local_size=local_size)


def ring_take(
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    world_size: tf.Tensor | int,
    path: str,
    step: tf.Tensor,
    timeout_s: float,
    round_: tf.Tensor,
    rounds: tf.Tensor,
    *,
    reduction: str,
    operation: str,
    wire: str,
) -> tf.Tensor:
    """Merges one round of the gradients of the node's ranks, for other nodes. Every rank of the node calls it.

    Between nodes a step is: `ring_take` of every round, in order; the buffers to the ranks with the same local rank on
    the other nodes; `ring_put` of every round, in order, which may be two rounds behind; then `ring_apply` or
    `ring_collect`.

    Args:
        keys, grads, world_size, path, step, timeout_s, reduction, operation: as in `node_merge`; the same in all
            rounds.
        round_: int64.
        rounds: int64, the same on all ranks, at least `ring_rounds` of each. From that round on nothing happens.
        wire: as in `pack`.

    Returns:
        uint8[n], packed: this rank's range of keys, summed over the node; n is 0 on a rank that does not merge.

    Raises:
        OpError: as `node_merge`.
    """
    return _lib.tsps_ring_take(
        keys,
        grads,
        world_size,
        path,
        step,
        timeout_s,
        round_,
        rounds,
        reduction=reduction,
        operation=operation,
        wire=wire,
    )


def ring_put(path: str, buffers: tf.Tensor, round_: tf.Tensor, tables: int) -> tf.Operation | None:
    """Reduces what the nodes have packed of one round, in their order, and lets the leader have it.

    Args:
        path: of the group.
        buffers: uint8[n], the nodes' buffers one after another.
        round_: int64. Nothing happens below 0.
        tables: T.

    Returns:
        In a graph, the operation.

    Raises:
        OpError: as `unpack_merge` and `node_merge`.
    """
    return _lib.tsps_ring_put(path, buffers, round_, T=tables)


def ring_apply(
    path: str, step: tf.Tensor, paths: Sequence[tf.Tensor], uuids: Sequence[tf.Tensor], hyper: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Ends the rounds of a step on every rank; the leader applies what has come of them. Returns the step.

    Args:
        path: of the group.
        step, paths, uuids, hyper: as in `node_apply`.

    Raises:
        OpError: as `node_apply`.
    """
    return _lib.tsps_ring_apply(path, step, paths, uuids, hyper)


def ring_collect(path: str, dims: Sequence[int]) -> Merged:
    """Ends the rounds of a step on every rank. Returns what has come of them on the leader, no rows on others."""
    merged = Merged(*_lib.tsps_ring_collect(path, T=len(dims), dims=list(dims)))
    for grads, dim in zip(merged.grads, dims, strict=True):
        grads.set_shape([None, dim])
    return merged


def apply(
    step: tf.Tensor | int,
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    hyper: Sequence[tf.Tensor],
) -> tf.Tensor:
    """Applies one optimizer step to T tables of one group and publishes it. Returns the step. Writer only.

    Args:
        step: int64, the committed step + 1.
        paths: T scalar strings.
        uuids: T scalar strings.
        keys: T of int64[u_t], unique within a table (`merge` sees to it).
        grads: T of float32[u_t, dim].
        hyper: T of float32: the hyperparameters of each table's optimizer, in the order of cc/core/row_optimizer.h.

    Raises:
        FailedPreconditionError: this process is not the writer; no optimizer is bound; step is not the next one.
        InvalidArgumentError: a gradient that is not finite, naming table and key; a wrong shape.
        ResourceExhaustedError: no room for new rows; the step is not applied.
    """
    return _lib.tsps_apply(step, paths, uuids, keys, grads, hyper)


def wait_step(path: tf.Tensor | str, step: tf.Tensor | int, timeout_s: tf.Tensor | float) -> tf.Tensor:
    """Waits until `step` of the group is published and returns it. Holds none of TensorFlow's threads meanwhile.

    Raises:
        DeadlineExceededError: not published within timeout_s.
        UnavailableError: the writer died first (names its process and the step), or `close_group` cancelled the wait.
    """
    return _lib.tsps_wait_step(path, step, timeout_s)


# --- groups and tables -----------------------------------------------------------------------------------------------


def create_group(path: str, uuid: str) -> None:
    """Creates a group, whose directory must not exist, and makes this process its writer."""
    _lib.tsps_create_group(path, uuid)


def open_writer(path: str) -> tf.Tensor:
    """Makes this process the writer of an existing group, recovering it if need be. Returns the committed step, int64.

    Raises:
        AbortedError: another process is the writer.
    """
    return _lib.tsps_open_writer(path)


def create_table(
    path: str,
    uuid: str,
    *,
    dim: int,
    key_limit: int = 0,
    max_rows: int = 0,
    initializer: str = "zeros",
    initializer_args: Sequence[float] = (0.0, 0.0),
    seed: int = 0,
    salt: int = 0,
) -> None:
    """Creates a table. Writer only.

    Args:
        path: <group directory>/<table folder>.
        uuid: 32 hex digits.
        dim: floats per row.
        key_limit: keys are 0 .. key_limit - 1; 0: any int64 is a key.
        max_rows: 0: no limit.
        initializer: "zeros", "constant", "uniform", "normal", "truncated_normal".
        initializer_args: (value, 0), (minval, maxval) or (mean, stddev).
        seed: of the job.
        salt: of the table, so that tables with one seed differ.
    """
    args = tf.constant(initializer_args, tf.float32)
    _lib.tsps_create_table(path, uuid, dim, key_limit, max_rows, initializer, args, seed, salt)


def bind_optimizer(path: str, uuid: str, kind: str, slot_init: Sequence[float] = (), *, replace: bool = False) -> None:
    """Creates a table's optimizer slots ("none", "sgd", "adagrad", "adam"). Writer only.

    Args:
        path: of the table.
        uuid: of the table.
        kind: the rule.
        slot_init: initial value of every element of each slot.
        replace: drop the slots of another rule, instead of refusing.
    """
    _lib.tsps_bind_optimizer(path, uuid, kind, tf.constant(slot_init, tf.float32, [len(slot_init)]), replace)


def assign(
    path: tf.Tensor | str, uuid: tf.Tensor | str, keys: tf.Tensor, rows: tf.Tensor, slots: Sequence[tf.Tensor] = ()
) -> None:
    """Sets rows (and slots), adding absent keys. Writer only.

    Args:
        path: of the table.
        uuid: of the table.
        keys: int64[n].
        rows: float32[n, dim].
        slots: none (existing keys keep theirs), or float32[n, dim] for every slot.
    """
    _lib.tsps_assign(path, uuid, keys, rows, list(slots))


def erase(path: tf.Tensor | str, uuid: tf.Tensor | str, keys: tf.Tensor) -> tf.Tensor:
    """Removes keys, int64[n]; returns how many were there, int64. Writer only."""
    return _lib.tsps_erase(path, uuid, keys)


def set_step(path: tf.Tensor | str, step: tf.Tensor | int) -> None:
    """Sets the committed step of a group, for a restored state. Writer only."""
    _lib.tsps_set_step(path, step)


class GroupInfo(NamedTuple):
    """What `group_info` returns."""

    step: tf.Tensor  # int64: last published step
    version: tf.Tensor  # int64: assigns, erases, table creations and optimizer bindings so far
    counters: tf.Tensor  # int64[8], of this process: COUNTERS


COUNTERS = (
    "read_retries",
    "read_blocked_ns_max",
    "steps_applied",
    "rows_written",
    "growth_splits",
    "growth_ns_max",
    "publish_ns_max",
    "growth_blocked_ns_max",
)


def group_info(path: tf.Tensor | str) -> GroupInfo:
    """State of a group and counters of this process."""
    return GroupInfo(*_lib.tsps_group_info(path))


def close_group(path: tf.Tensor | str) -> None:
    """Drops this process's handle and writer lock and ends waits; later ops open the path anew."""
    _lib.tsps_close_group(path)


def set_threads(threads: int, writer_threads: int) -> None:
    """Sets the sizes of the op library's thread pools: of all ops, and of updates. 0: all processors it may use."""
    _lib.tsps_set_threads(threads, writer_threads)
