"""Merges the gradients of several ranks to one per key, and records counters and a timeline of this work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.groups import NOBODY, counts_of
from tf_sparse_ps._ops.library import lib


class Merged(NamedTuple):
    """The result of `merge`."""

    keys: list[tf.Tensor]  # T of int64[u_t], unique
    grads: list[tf.Tensor]  # T of float32[u_t, dim]
    counts: list[tf.Tensor]  # T of int32[u_t]: the counts of the keys (`take_occurrences`)


def merge(
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    counts: Sequence[tf.Tensor],
    world_size: tf.Tensor | int,
    reduction: str,
) -> Merged:
    """Merges the concatenated gradients of several ranks to one gradient per key. Adds them in input order.

    Args:
        keys: The keys, T of int64[m_t].
        grads: The gradients, T of float32[m_t, dim].
        counts: The counts of the keys (`take_occurrences`), T of int32[m_t]; int32[0]: each is of one rank.
        world_size: The number of ranks, int32.
        reduction: "frequency" (sum / ranks in which the key occurred), "average" (sum / world_size), "sum", or "local"
            (the sum within one rank, for a layer that was called twice; all counts become 1).
    """
    return Merged(*lib.tsps_merge(keys, grads, counts, world_size, reduction=reduction))


def keep_if(
    weight: tf.Tensor, keys: Sequence[tf.Tensor], grads: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the same keys and gradients, uncopied, if the weight is greater than 0; otherwise empty ones.

    Args:
        weight: The weight, a float32 scalar.
        keys: The keys, T of int64[u_t].
        grads: The gradients, T of float32[u_t, dim].
    """
    kept = lib.tsps_keep_if(weight, keys, grads)
    return list(kept.kept_keys), list(kept.kept_grads)


def pack(keys: Sequence[tf.Tensor], grads: Sequence[tf.Tensor], counts: Sequence[tf.Tensor], wire: str) -> tf.Tensor:
    """Packs gradients for the wire: uint8[n], padded to a size that recurs (docs/format.md has the format).

    Args:
        keys: The keys, T of int64[u_t], unique within a table.
        grads: The gradients, T of float32[u_t, dim].
        counts: The counts of the keys (`take_occurrences`), T of int32[u_t]; int32[0]: each is of one rank.
        wire: The type to which gradients are rounded, to nearest even: "float32", "bfloat16" or "float16".
    """
    return lib.tsps_pack(keys, grads, counts, wire=wire)


def unpack_merge(buffers: tf.Tensor, world_size: tf.Tensor | int, reduction: str, dims: Sequence[int]) -> Merged:
    """Merges the packed gradients of several senders, in their order, as `merge` does.

    Args:
        buffers: The concatenated buffers of the senders, uint8[n].
        world_size: The number of ranks, int32, which is the divisor of "average".
        reduction: See `merge`.
        dims: The row widths of the T tables.

    Raises:
        DataLossError: A buffer is damaged, truncated or of another version.
        InvalidArgumentError: A sender has other tables.
    """
    merged = Merged(*lib.tsps_unpack_merge(buffers, world_size, T=len(dims), reduction=reduction))
    for grads, dim in zip(merged.grads, dims, strict=True):
        grads.set_shape([None, dim])
    return merged


def join_exchange(
    path: str, folder: str, local_rank: int, local_size: int, rank: int, mergers: int, window: int
) -> None:
    """Adds this process to the ranks that merge their gradients in shared memory, once per group and process.

    Args:
        path: The path of the group.
        folder: A private folder for this run of the job, which exists.
        local_rank: The local rank; 0 is the leader.
        local_size: The number of ranks on this node.
        rank: The rank among all ranks, for messages.
        mergers: The number of ranks of the node that merge, counted from local rank 0; 0: all.
        window: The bytes of shared memory for the contributions of all ranks to one round. The merged gradients may
            take as many again. The same on all ranks.
    """
    lib.tsps_join_exchange(path, folder, local_rank, local_size, rank, mergers, window)


def leave_exchange(path: str) -> None:
    """Tells the other ranks of the node that this process needs them no more, so that its end is not an error."""
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
    """Returns the `RING_COUNTERS` of this process, int64[9]. `DistributedOptimizer.statistics` describes them."""
    return lib.tsps_ring_info(path)


def mark(value: tf.Tensor, name: str, phase: str, variable: Any) -> tf.Tensor:
    """Returns the same tensor, and records in the process's timeline when it is ready: a collective begins or ends.

    The beginning fails if collectives are refused (`refuse_collectives`). TensorFlow cannot evaluate the op before the
    graph runs, even if `value` is a constant.

    Args:
        value: A tensor of any type. The op runs when it is ready, and has no other order with other ops.
        name: The name of the collective. Its time counts as time between nodes if the name contains ".nodes".
        phase: "begin" or "end".
        variable: An int64 variable or a value read from one. Grappler and TensorFlow's runtime fold ops whose inputs
            are all constants. They do not fold an op with a variable as input.
    """
    return lib.tsps_mark(value, variable, name_of=name, phase=phase)


@tf.RegisterGradient("TspsMark")
def _mark_gradient(op: Any, grad: tf.Tensor) -> tuple[tf.Tensor, None]:
    return grad, None


def ready(value: tf.Tensor, profile: str, gradient: int, variable: Any) -> tf.Tensor:
    """Returns the same tensor, and records in a profile when it is ready, in every run, also for constants.

    Args:
        value: A tensor of any type. The op runs when it is ready, and has no other order with other ops.
        profile: The name of the profile.
        gradient: The number of the gradient, which is recorded with the time.
        variable: See `mark`.
    """
    return lib.tsps_ready(value, variable, profile=profile, gradient=gradient)


def ready_times(profile: str) -> list[tuple[int, int]]:
    """Returns the records of `ready` since the last call: gradients and nanoseconds (monotonic clock). Eager only."""
    times = lib.tsps_ready_times(profile=profile).numpy().reshape(-1, 2).tolist()
    return [(gradient, when) for gradient, when in times]


def in_flight() -> list[tuple[str, int, int]]:
    """Returns the collectives of this process that have begun and not ended. Eager only.

    Returns:
        Their names, and their beginning and the present in nanoseconds of the monotonic clock.
    """
    spans = json.loads(bytes(lib.tsps_timeline(action="in_flight").numpy()))
    return [(name, begin, now) for name, begin, now in spans]


def refuse_collectives(reason: tf.Tensor | str) -> None:
    """Makes collectives and merges in graphs of this process fail as they begin.

    Their error is UnavailableError, which TensorFlow replaces by InternalError.

    Args:
        reason: The reason, for the message. "": they may begin again.
    """
    lib.tsps_refuse_collectives(reason)


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
    counts: Sequence[tf.Tensor | None] | None = None,
) -> Merged:
    """Merges the gradients of the node's ranks, in rank order, in shared memory. Every rank of the node calls it.

    The op holds none of TensorFlow's threads while it waits for other ranks.

    Args:
        keys: The keys, T of int64[u_t], unique.
        grads: The gradients, T of float32[u_t, dim].
        world_size: The number of ranks, int32, which is the divisor of "average".
        path: The path of the group.
        step: The number of this step, int64, the same on all ranks.
        timeout_s: The time to wait for one rank, in seconds.
        reduction: "frequency", "average" or "sum".
        operation: The name of the operation, the same on all ranks, at most 127 characters.
        counts: The counts of the keys (`take_occurrences`), T of int32[u_t]; None: each key is of this rank.

    Returns:
        The merged gradients on the leader; the inputs determine them completely, the order of keys included. No rows
        on other ranks.

    Raises:
        UnavailableError: A rank died.
        DeadlineExceededError: A rank did not respond in time. The message describes its state.
        AbortedError: A rank failed.
        InvalidArgumentError: The ranks' calls differ in the operation, the tables or the widths.
    """
    common = world_size, path, step, timeout_s
    return Merged(
        *lib.tsps_node_merge(keys, grads, counts_of(keys, counts), *common, reduction=reduction, operation=operation)
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
    counts: Sequence[tf.Tensor | None] | None = None,
) -> tf.Tensor:
    """Merges gradients as `node_merge` does; the leader then makes the step without copying the merged gradients.

    Args:
        keys: See `node_merge`; likewise grads, world_size, path, timeout_s, reduction, operation and counts.
        step: The number of this step, int64, which is the committed step + 1.
        paths: See `make_step`; likewise uuids, hyper, optimizer and digest.

    Returns:
        The verdict on the step, on every rank. See `make_step`.

    Raises:
        OpError: See `node_merge`.
    """
    return lib.tsps_node_apply(
        keys,
        grads,
        counts_of(keys, counts),
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
    """Returns the number of rounds that this rank's gradients need to pass through its part of the window: int64[1].

    Args:
        keys: The keys, T of int64[u_t].
        dims: The row widths of the T tables. A count of a key takes as much as an element of its row.
        window: The bytes of the window. See `join_exchange`.
        local_size: The number of ranks on this node.
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
    counts: Sequence[tf.Tensor | None] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Merges one round of the gradients of the node's ranks, for other nodes. Every rank of the node calls it.

    A step between nodes has these parts:

    1. `ring_take` of every round, in order.
    2. The exchange of the buffers with the ranks that have the same local rank on the other nodes.
    3. `ring_put` of every round, in order. It may be some rounds late, equally on all ranks of the node.
    4. `ring_prepare` or `ring_collect`.

    Args:
        keys: See `node_merge`; likewise grads, world_size, path, step, timeout_s, reduction, operation and counts. The
            same in all rounds.
        round_: The number of this round, int64, counted from 0.
        rounds: The number of rounds, int64, the same on all ranks and at least the `ring_rounds` of each. A call with
            `round_ >= rounds` does nothing.
        wire: See `pack`.
        owners: The number of nodes among which a hash of the keys divides the tables; 1: all nodes have the same rows.

    Returns:
        The packed sums over the node for this rank's range of keys, uint8[n], a buffer for each owner; and the lengths
        of the buffers, int32[owners]. n is 0 on a rank that does not merge.

    Raises:
        OpError: See `node_merge`.
    """
    buffer, splits = lib.tsps_ring_take(
        keys,
        grads,
        counts_of(keys, counts),
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
    """Reduces the packed buffers of all nodes for one round, in the order of the nodes, and passes the result on.

    The leader gets the result through shared memory.

    Args:
        path: The path of the group.
        buffers: The concatenated buffers of the nodes, uint8[n].
        round_: The number of the round, int64. A call with a number below 0 does nothing.
        tables: The number of tables, T.
        owners: See `ring_take`.

    Returns:
        The operation, in a graph.

    Raises:
        OpError: See `unpack_merge` and `node_merge`.
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
    """Ends the rounds of a step on every rank. The leader prepares the step with the merged gradients.

    Args:
        path: The path of the group.
        step: See `node_apply`; likewise paths, uuids, hyper and optimizer.
        voters: See `prepare_step`.

    Returns:
        The objections of this node, as `prepare_step` returns them. Ranks other than the leader have no objections.

    Raises:
        OpError: See `node_merge`.
    """
    return lib.tsps_ring_prepare(path, step, paths, uuids, hyper, optimizer, voters=voters)


def ring_collect(path: str, dims: Sequence[int]) -> Merged:
    """Ends the rounds of a step on every rank. Returns the merged gradients on the leader, no rows on other ranks."""
    merged = Merged(*lib.tsps_ring_collect(path, T=len(dims), dims=list(dims)))
    for grads, dim in zip(merged.grads, dims, strict=True):
        grads.set_shape([None, dim])
    return merged
