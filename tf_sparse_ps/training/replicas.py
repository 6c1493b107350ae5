"""Steps under a tf.distribute strategy: the replicas of a process make one step together.

A step is called in every replica, inside `strategy.run`, and made once per process, in a `merge_call`. There each
replica counts as a rank: a key's gradients are added up over the replicas, in their order, and divided by how many had
it ("frequency"); dense gradients are averaged. Then the process continues as one rank. The results go back to the
replicas, where the wrapped Keras optimizer applies them without adding them up once more.

The loss is tf.distribute's: what a replica differentiates is its mean loss divided by the number of all replicas, as
Keras's losses, `fit` and `tf.nn.compute_average_loss` divide it, so that gradients are to be added up. Multiplied by
that number they are those of the replica's own mean loss, of which the rules for ranks speak; the mean of those is
the sum of these.
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
            f"the legacy {kind} cannot be wrapped under tf.distribute: it updates nothing where replicas are one. Use "
            f"tf.keras.optimizers.{kind}"
        )
    if _keras.strategy_of(optimizer) is not strategy:
        raise ValueError(
            f"the wrapped {kind} was made outside of the strategy's scope; replicas would not share its slots. Make it "
            "within `with strategy.scope():`"
        )


def strategy_of_step(collectives: Collectives) -> Any:
    """The strategy of several replicas in one of which this is called, or None if there is none.

    Raises:
      ValueError: There is one, and gradients cannot be reduced here as it needs it, with the reason.
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
      make: Called with the pairs of every replica of the process, in their order, and the number of all replicas.
    """

    def merged(strategy: Any, gradients: list[Any]) -> Any:
        by_gradient = [strategy.experimental_local_results(one) for one in gradients]
        replicas = []
        for r in range(len(strategy.extended.worker_devices)):
            own = iter([one[r] for one in by_gradient])
            replicas.append([(None if gradient is None else next(own), v) for gradient, v in pairs])
        return make(replicas, strategy.num_replicas_in_sync)

    present = [gradient for gradient, _ in pairs if gradient is not None]
    return tf.distribute.get_replica_context().merge_call(merged, args=(present,))


def average(
    gradients: Sequence[tf.Tensor], collectives: Collectives, name: str, weight: tf.Tensor
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """`dense_mean.average`, over all replicas where there are some; called in each of them.

    Args:
      gradients, collectives, name: As there.
      weight: The rank's, from `rank_weight.allowed`.

    Returns:
      As there.

    Raises:
      ValueError: See `strategy_of_step`.
    """
    strategy = strategy_of_step(collectives)
    own = list(gradients)
    if strategy is None:
        return dense_mean.average(own, collectives, name, weight)
    if collectives.size > 1:
        factor = tf.constant(strategy.num_replicas_in_sync, tf.float32)
        return dense_mean.average([clipping.scale(one, factor) for one in own], collectives, name, weight)
    sums = tf.distribute.get_replica_context().all_reduce("SUM", own) if own else own
    return [rank_weight.mean(rank_weight.weighted(one, weight), weight) for one in sums], [weight]


def combine(parts: Sequence[Split], n_replicas: int, reduction: str, devices: Sequence[str]) -> Split:
    """Makes the gradients of one process of those of its replicas.

    Args:
      parts: What `gradients.split` made of each replica's.
      n_replicas: Of all processes; 1 without a strategy.
      reduction: One of `sparse_reducer.REDUCTIONS`, for several replicas; these are then all there are.
      devices: Of the replicas; none without a strategy.

    Returns:
      Of a table with rows on several devices there is one gradient for each of these, in their order.
    """
    caches = [cache_of(one.table) for one in parts[0][0]]
    several = any(cache is not None and len(cache.devices) > 1 for cache in caches)
    if n_replicas == 1 and not several:
        return parts[0]
    tables: list[TableGradient] = []
    for ones in zip(*(tables for tables, _ in parts), strict=True):
        if cache_of(ones[0].table) is not None:
            tables += _combine_cached(ones, n_replicas, reduction, devices)
    plain = [[one for one in tables if cache_of(one.table) is None] for tables, _ in parts]
    tables += _combine_tables(plain, n_replicas, reduction)
    tables.sort(key=lambda one: one.table.ordinal)
    if n_replicas == 1:
        return tables, parts[0][1]
    dense = [_combine_dense(ones, n_replicas / len(parts)) for ones in zip(*(dense for _, dense in parts), strict=True)]
    return tables, dense


def _combine_tables(parts: list[list[TableGradient]], n_replicas: int, reduction: str) -> list[TableGradient]:
    factor = tf.constant(n_replicas, tf.float32)
    if len(parts) == 1 or not parts[0]:
        return [TableGradient(one.table, [clipping.scale(slices, factor) for slices in one.slices]) for one in parts[0]]
    replicas = [_unique([one.gradient for one in tables]) for tables in parts]
    by_table = list(zip(*replicas, strict=True))
    keys = [tf.concat([one.keys for one in ones], 0) for ones in by_table]
    rows = [tf.concat([one.rows for one in ones], 0) for ones in by_table]
    merged = _ops.merge(keys, rows, [tf.ones_like(one, tf.int32) for one in keys], len(parts), reduction)
    results = []
    for one, unique, total in zip(parts[0], merged.keys, merged.grads, strict=True):
        total.set_shape([None, one.table.config.dim])
        results.append(TableGradient(one.table, [], SparseGradient(unique, total * factor)))
    return results


def _combine_cached(
    ones: Sequence[TableGradient], n_replicas: int, reduction: str, devices: Sequence[str]
) -> list[TableGradient]:
    """Sends the replicas' gradients of a table with rows on devices to the devices that have the keys."""
    cache = cache_of(ones[0].table)
    assert cache is not None
    own = list(devices) or cache.devices[:1]
    gradients = [one.on(device) for one, device in zip(ones, own, strict=True)]
    reduced = cache.reduce([one.keys for one in gradients], [one.rows for one in gradients], own, reduction)
    results = []
    for (keys, rows), device in zip(reduced, cache.devices, strict=True):
        with tf.device(device):
            total = rows if n_replicas == 1 else rows * tf.constant(n_replicas, tf.float32)
            total.set_shape([None, ones[0].table.config.dim])
        results.append(TableGradient(ones[0].table, [], SparseGradient(keys, total, device=device)))
    return results


def _unique(gradients: Sequence[SparseGradient]) -> list[SparseGradient]:
    """Adds up rows with equal keys: a replica counts once for each of its keys."""
    ones = [tf.ones_like(one.keys, tf.int32) for one in gradients]
    merged = _ops.merge([one.keys for one in gradients], [one.rows for one in gradients], ones, 1, "local")
    return [SparseGradient(keys, rows) for keys, rows in zip(merged.keys, merged.grads, strict=True)]


def _combine_dense(ones: Sequence[DenseGradient], factor: float) -> DenseGradient:
    """The sum over a process's replicas times `factor`, which is the number of processes."""
    values = [one.value for one in ones if one.value is not None]
    variable = ones[0].variable
    if not values or all(mean_of(value) is not None for value in values):
        return DenseGradient(variable, values[0] if values else None, sparse=ones[0].sparse)
    total = values[0]
    if isinstance(total, tf.IndexedSlices):
        rows, keys = tf.concat([one.values for one in values], 0), tf.concat([one.indices for one in values], 0)
        total = tf.IndexedSlices(rows, keys, total.dense_shape)
    elif len(values) > 1:
        total = tf.add_n(values)
    total = total if factor == 1 else clipping.scale(total, tf.constant(factor, tf.float32))
    return DenseGradient(variable, total, sparse=ones[0].sparse)
