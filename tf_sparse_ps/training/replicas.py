"""Steps under a tf.distribute strategy: the replicas of a process make one step together.

Every replica calls a step inside `strategy.run`. A `merge_call` makes the step once per process. There each replica
counts as a rank: a key's gradients are added up over the replicas, in their order, and divided by the number of
replicas that have the key ("frequency"); dense gradients are averaged. Then the process continues as one rank. The
replicas get the results, and the wrapped Keras optimizer applies them there without adding them up again.

Under tf.distribute a replica differentiates its mean loss divided by the number of all replicas. Keras's losses, `fit`
and `tf.nn.compute_average_loss` divide it, so that the gradients of the replicas can be added up. This module
multiplies the gradients by that number, because the rules for ranks apply to gradients of an undivided mean loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives, active_strategy
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.reduction import clipping, dense_mean, rank_weight
from tf_sparse_ps.reduction.gradients import DenseGradient, TableGradient, mean_of
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient
from tf_sparse_ps.training import refusals

Pairs = list[tuple[Any, Any]]
Split = tuple[list[TableGradient], list[DenseGradient]]


def check_optimizer(optimizer: Any, strategy: Any) -> None:
    """Raises ValueError, with the reason, if an optimizer cannot be wrapped under a strategy of several replicas."""
    kind = type(optimizer).__name__
    if _keras.is_legacy_optimizer(optimizer):
        raise ValueError(
            f"the legacy {kind} cannot be wrapped under tf.distribute, because it updates no variable in a merge_call. "
            f"Use tf.keras.optimizers.{kind}"
        )
    if _keras.strategy_of(optimizer) is not strategy:
        raise ValueError(
            f"the wrapped {kind} was made outside of the strategy's scope, so the replicas would not share its slots. "
            "Make it within `with strategy.scope():`"
        )


def strategy_of_step(collectives: Collectives) -> Any:
    """Returns the strategy of several replicas if a replica calls this function, otherwise None.

    Raises:
      ValueError: A strategy is active, and its gradients cannot be reduced here. The message has the reason.
    """
    strategy = active_strategy()
    if strategy is not None and tf.distribute.get_replica_context() is None:
        raise ValueError(refusals.OUTSIDE_OF_RUN)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        if collectives.kind == "tf.distribute" and collectives.size > 1:
            raise ValueError(refusals.OUTSIDE_OF_RUN)
        return None
    if collectives.kind != "tf.distribute":
        raise ValueError(refusals.STRATEGY.format(kind=collectives.kind))
    collectives.check_strategy(strategy)  # type: ignore[attr-defined]
    return strategy


def as_one(strategy: Any, pairs: Pairs, make: Callable[[list[Pairs], int], Any]) -> Any:
    """Calls `make` once in this process, in cross-replica context, and returns its results in every replica.

    Args:
      strategy: From `strategy_of_step`.
      pairs: This replica's gradients and variables. The same variables have gradients in all replicas of a process.
      make: The function to call. Its arguments are the pairs of each replica of the process, and the number of
        replicas of all processes.
    """

    def merged(strategy: Any, gradients: list[Any]) -> Any:
        per_gradient = [strategy.experimental_local_results(gradient) for gradient in gradients]
        replicas = []
        for r in range(len(strategy.extended.worker_devices)):
            of_replica = iter([values[r] for values in per_gradient])
            replicas.append([(None if gradient is None else next(of_replica), v) for gradient, v in pairs])
        return make(replicas, strategy.num_replicas_in_sync)

    present = [gradient for gradient, _ in pairs if gradient is not None]
    return tf.distribute.get_replica_context().merge_call(merged, args=(present,))


def average(
    gradients: Sequence[tf.Tensor], collectives: Collectives, name: str, weight: tf.Tensor
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Averages dense gradients over the ranks, or over all replicas of the ranks. Each replica calls it.

    Args:
      gradients, collectives, name: See `dense_mean.average`.
      weight: The weight of this rank, from `rank_weight.allowed`.

    Returns:
      See `dense_mean.average`.

    Raises:
      ValueError: See `strategy_of_step`.
    """
    strategy = strategy_of_step(collectives)
    gradients = list(gradients)
    if strategy is None:
        return dense_mean.average(gradients, collectives, name, weight)
    if collectives.size > 1:
        factor = tf.constant(strategy.num_replicas_in_sync, tf.float32)
        return dense_mean.average(
            [clipping.scale(gradient, factor) for gradient in gradients], collectives, name, weight
        )
    sums = tf.distribute.get_replica_context().all_reduce("SUM", gradients) if gradients else gradients
    return [rank_weight.mean(rank_weight.weighted(total, weight), weight) for total in sums], [weight]


def combine(parts: Sequence[Split], n_replicas: int, reduction: str, devices: Sequence[str]) -> Split:
    """Combines the gradients of a process's replicas to gradients of the process.

    Args:
      parts: The gradients of each replica, from `gradients.split`.
      n_replicas: The number of replicas of all processes; 1 without a strategy.
      reduction: One of `sparse_reducer.REDUCTIONS`. It is used if this process has all replicas, and several.
      devices: The devices of the replicas of this process; empty without a strategy.

    Returns:
      The gradients of tables and the dense ones. A table with rows on several devices has one gradient per device, in
      the order of the devices.
    """
    caches = [cache_of(gradient.table) for gradient in parts[0][0]]
    several = any(cache is not None and len(cache.devices) > 1 for cache in caches)
    if n_replicas == 1 and not several:
        return parts[0]
    tables: list[TableGradient] = []
    for of_replicas in zip(*(tables for tables, _ in parts), strict=True):
        if cache_of(of_replicas[0].table) is not None:
            tables += _combine_cached(of_replicas, n_replicas, reduction, devices)
    uncached = [[gradient for gradient in tables if cache_of(gradient.table) is None] for tables, _ in parts]
    tables += _combine_tables(uncached, n_replicas, reduction)
    tables.sort(key=lambda gradient: gradient.table.ordinal)
    if n_replicas == 1:
        return tables, parts[0][1]
    factor = n_replicas / len(parts)
    return tables, [_combine_dense(of_replicas, factor) for of_replicas in zip(*(d for _, d in parts), strict=True)]


def _combine_tables(parts: list[list[TableGradient]], n_replicas: int, reduction: str) -> list[TableGradient]:
    factor = tf.constant(n_replicas, tf.float32)
    if len(parts) == 1 or not parts[0]:
        return [
            TableGradient(gradient.table, [clipping.scale(slices, factor) for slices in gradient.slices])
            for gradient in parts[0]
        ]
    replicas = [_unique([gradient.gradient for gradient in tables]) for tables in parts]
    per_table = list(zip(*replicas, strict=True))
    keys = [tf.concat([gradient.keys for gradient in of_replicas], 0) for of_replicas in per_table]
    rows = [tf.concat([gradient.rows for gradient in of_replicas], 0) for of_replicas in per_table]
    merged = _ops.merge(keys, rows, [tf.ones_like(k, tf.int32) for k in keys], len(parts), reduction)
    results = []
    for gradient, unique, total in zip(parts[0], merged.keys, merged.grads, strict=True):
        total.set_shape([None, gradient.table.config.dim])
        merged_gradient = SparseGradient(unique, total * factor, counted=gradient.table.counted)
        results.append(TableGradient(gradient.table, [], merged_gradient))
    return results


def _combine_cached(
    of_replicas: Sequence[TableGradient], n_replicas: int, reduction: str, devices: Sequence[str]
) -> list[TableGradient]:
    """Sends the replicas' gradients of a table with rows on devices to the devices that have the keys."""
    table = of_replicas[0].table
    cache = cache_of(table)
    assert cache is not None
    senders = list(devices) or cache.devices[:1]
    gradients = [gradient.on(device) for gradient, device in zip(of_replicas, senders, strict=True)]
    reduced = cache.reduce([grad.keys for grad in gradients], [grad.rows for grad in gradients], senders, reduction)
    results = []
    for (keys, rows), device in zip(reduced, cache.devices, strict=True):
        with tf.device(device):
            total = rows if n_replicas == 1 else rows * tf.constant(n_replicas, tf.float32)
            total.set_shape([None, table.config.dim])
        results.append(TableGradient(table, [], SparseGradient(keys, total, device=device)))
    return results


def _unique(gradients: Sequence[SparseGradient]) -> list[SparseGradient]:
    """Adds up the rows of equal keys, because a replica counts once for each of its keys."""
    keys, rows = [gradient.keys for gradient in gradients], [gradient.rows for gradient in gradients]
    merged = _ops.merge(keys, rows, [tf.ones_like(k, tf.int32) for k in keys], 1, "local")
    return [SparseGradient(keys, rows) for keys, rows in zip(merged.keys, merged.grads, strict=True)]


def _combine_dense(of_replicas: Sequence[DenseGradient], factor: float) -> DenseGradient:
    """Returns the sum over a process's replicas times `factor`, which is the number of processes."""
    values = [gradient.value for gradient in of_replicas if gradient.value is not None]
    variable, sparse = of_replicas[0].variable, of_replicas[0].sparse
    if not values or all(mean_of(value) is not None for value in values):
        return DenseGradient(variable, values[0] if values else None, sparse=sparse)
    total = values[0]
    if isinstance(total, tf.IndexedSlices):
        rows = tf.concat([value.values for value in values], 0)
        total = tf.IndexedSlices(rows, tf.concat([value.indices for value in values], 0), total.dense_shape)
    elif len(values) > 1:
        total = tf.add_n(values)
    total = total if factor == 1 else clipping.scale(total, tf.constant(factor, tf.float32))
    return DenseGradient(variable, total, sparse=sparse)
