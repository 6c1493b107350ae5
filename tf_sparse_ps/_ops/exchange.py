"""Gradients of several ranks become one per key; what they do meanwhile is counted and recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.groups import NOBODY
from tf_sparse_ps._ops.library import lib


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
    return Merged(*lib.tsps_merge(keys, grads, counts, world_size, reduction=reduction))


def keep_if(
    weight: tf.Tensor, keys: Sequence[tf.Tensor], grads: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The same gradients, uncopied, if the weight is greater than 0; else none.

    Args:
        weight: float32 scalar.
        keys: T of int64[u_t].
        grads: T of float32[u_t, dim].
    """
    kept = lib.tsps_keep_if(weight, keys, grads)
    return list(kept.kept_keys), list(kept.kept_grads)


def pack(keys: Sequence[tf.Tensor], grads: Sequence[tf.Tensor], counts: Sequence[tf.Tensor], wire: str) -> tf.Tensor:
    """Packs gradients for the wire: uint8[n], a size that occurs often (docs/format.md has the format).

    Args:
        keys: T of int64[u_t], unique within a table.
        grads: T of float32[u_t, dim].
        counts: T of int32[u_t]: in how many ranks each key occurred, 1 or more.
        wire: "float32", "bfloat16" or "float16": what gradients are rounded to, to nearest even.
    """
    return lib.tsps_pack(keys, grads, counts, wire=wire)


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
    merged = Merged(*lib.tsps_unpack_merge(buffers, world_size, T=len(dims), reduction=reduction))
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
    lib.tsps_join_exchange(path, folder, local_rank, local_size, rank, mergers, window)


def leave_exchange(path: str) -> None:
    """Tells the other ranks of the node that this process needs them no more: its end is then no death."""
    lib.tsps_leave_exchange(path)


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
    return lib.tsps_ring_info(path)


def mark(value: tf.Tensor, name: str, phase: str, variable: Any) -> tf.Tensor:
    """The same tensor; the process's timeline learns that a collective begins, or ends, when it is there.

    In a graph it is nothing that TensorFlow knows before the graph runs, even where `value` is a constant.

    Args:
        value: anything. It follows the data: no order with other ops is asked for.
        name: of the collective; its time counts as between nodes if ".nodes" is in it.
        phase: "begin" or "end".
        variable: an int64 variable, or what was read from one. Grappler folds what is made of constants, and so does
            TensorFlow's runtime, by other rules: both leave alone what is made of a variable.
    """
    return lib.tsps_mark(value, variable, name_of=name, phase=phase)


@tf.RegisterGradient("TspsMark")
def _mark_gradient(op: Any, grad: tf.Tensor) -> tuple[tf.Tensor, None]:
    return grad, None


def ready(value: tf.Tensor, profile: str, gradient: int, variable: Any) -> tf.Tensor:
    """The same tensor; a profile learns when it is there, at every run, of constants too.

    Args:
        value: anything. It follows the data: no order with other ops is asked for.
        profile: a name.
        gradient: what to record.
        variable: as in `mark`.
    """
    return lib.tsps_ready(value, variable, profile=profile, gradient=gradient)


def ready_times(profile: str) -> list[tuple[int, int]]:
    """What `ready` has recorded since the last call: gradients, and nanoseconds of the monotonic clock. Eager only."""
    found = lib.tsps_ready_times(profile=profile).numpy().reshape(-1, 2).tolist()
    return [(gradient, when) for gradient, when in found]


def in_flight() -> list[tuple[str, int, int]]:
    """The collectives of this process that have begun and not ended. Eager only.

    Returns:
        Their names, and their beginning and the present in nanoseconds of the monotonic clock.
    """
    spans = json.loads(bytes(lib.tsps_timeline(action="in_flight").numpy()))
    return [(name, begin, now) for name, begin, now in spans]


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
        *lib.tsps_node_merge(keys, grads, world_size, path, step, timeout_s, reduction=reduction, operation=operation)
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
    optimizer: tf.Tensor | tuple[int, int] = NOBODY,
    digest: tf.Tensor | int = 0,
    *,
    reduction: str,
    operation: str,
) -> tf.Tensor:
    """`node_merge`, then `make_step` by the leader, from where the merged gradients lie.

    Args:
        keys, grads, world_size, path, timeout_s, reduction, operation: as in `node_merge`.
        step: int64, the committed step + 1.
        paths: T scalar strings.
        uuids: T scalar strings.
        hyper, optimizer: as in `make_step`.
        digest: as in `make_step`.

    Returns:
        The verdict on the step, on every rank: see `make_step`.

    Raises:
        OpError: as `node_merge`.
    """
    return lib.tsps_node_apply(
        keys,
        grads,
        world_size,
        path,
        step,
        timeout_s,
        paths,
        uuids,
        hyper,
        optimizer,
        digest,
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
    return lib.tsps_ring_rounds(keys, dims=list(dims), window=window, local_size=local_size)


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
    owners: int = 1,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Merges one round of the gradients of the node's ranks, for other nodes. Every rank of the node calls it.

    Between nodes a step is: `ring_take` of every round, in order; the buffers to the ranks with the same local rank on
    the other nodes; `ring_put` of every round, in order, which may be behind, alike on all ranks of the node; then
    `ring_prepare` or `ring_collect`.

    Args:
        keys, grads, world_size, path, step, timeout_s, reduction, operation: as in `node_merge`; the same in all
            rounds.
        round_: int64.
        rounds: int64, the same on all ranks, at least `ring_rounds` of each. From that round on nothing happens.
        wire: as in `pack`.
        owners: nodes that have a part of the tables each, by a hash of the keys; 1: they have the same.

    Returns:
        uint8[n], packed: this rank's range of keys, summed over the node, a buffer for each owner; and int32[owners],
        their lengths. n is 0 on a rank that does not merge.

    Raises:
        OpError: as `node_merge`.
    """
    buffer, splits = lib.tsps_ring_take(
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
        owners=owners,
    )
    return buffer, splits


def ring_put(path: str, buffers: tf.Tensor, round_: tf.Tensor, tables: int, owners: int = 1) -> tf.Operation | None:
    """Reduces what the nodes have packed of one round, in their order, and lets the leader have it.

    Args:
        path: of the group.
        buffers: uint8[n], the nodes' buffers one after another.
        round_: int64. Nothing happens below 0.
        tables: T.
        owners: as in `ring_take`.

    Returns:
        In a graph, the operation.

    Raises:
        OpError: as `unpack_merge` and `node_merge`.
    """
    return lib.tsps_ring_put(path, buffers, round_, T=tables, owners=owners)


def ring_prepare(
    path: str,
    step: tf.Tensor,
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    hyper: Sequence[tf.Tensor],
    optimizer: tf.Tensor | tuple[int, int] = NOBODY,
    voters: int = 1,
) -> tf.Tensor:
    """Ends the rounds of a step on every rank; the leader prepares the step of what has come of them.

    Args:
        path: of the group.
        step, paths, uuids, hyper, optimizer: as in `node_apply`.
        voters: as in `prepare_step`.

    Returns:
        As `prepare_step`; no objections on ranks other than the leader.

    Raises:
        OpError: as `node_merge`.
    """
    return lib.tsps_ring_prepare(path, step, paths, uuids, hyper, optimizer, voters=voters)


def ring_collect(path: str, dims: Sequence[int]) -> Merged:
    """Ends the rounds of a step on every rank. Returns what has come of them on the leader, no rows on others."""
    merged = Merged(*lib.tsps_ring_collect(path, T=len(dims), dims=list(dims)))
    for grads, dim in zip(merged.grads, dims, strict=True):
        grads.set_shape([None, dim])
    return merged
