"""The host's part of caches of tables on a device. The rows on the device are variables, which the callers move.

The number of a cache is an int64 scalar; 0 stands for no cache. docs/device-cache.md explains a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.library import lib

CACHE_COUNTERS = (
    "looked_up",  # keys that forward passes looked up
    "missed",  # looked-up keys whose rows came from the host
    "steps",  # steps
    "keys",  # keys with a gradient, in all steps
    "hits",  # keys with a gradient that had a slot on the device
    "entered",  # keys that got a slot
    "evicted",  # keys that lost their slot
    "written",  # rows of evicted keys that were written to the host
    "flushed",  # rows that flushes wrote to the host
    "newer",  # rows that are newer on the device now
    "announced",  # lookups that tsps.lookahead announced
    "taken",  # announced lookups that were made
    "dropped",  # announced lookups that were skipped, because a later one was made
    "copied_ahead",  # rows that were copied to the device ahead
    "used",  # rows copied ahead that a lookup used
    "waited_ns",  # time in which lookups waited for rows that were being copied
    "pulled",  # rows that were copied to other devices, for their lookups
    "pushed",  # gradients that came from other devices
    "moving",  # 1: a step was made, and its rows are not yet written on the device
)


def cache_create(slots: int, policy: str, table: str) -> tf.Tensor:
    """Makes a cache whose slots are all free, and returns its number.

    Args:
        slots: The number of slots, each for one row.
        policy: The policy, "admission" or "lru".
        table: The path of the table. While rows are newer on the device, a file next to the table records since which
            step.
    """
    return lib.tsps_cache_create(tf.constant(slots, tf.int64), policy, table)


def cache_remove(cache: tf.Tensor | int) -> None:
    """Removes a cache, if it exists."""
    lib.tsps_cache_remove(tf.cast(cache, tf.int64))


class Taken(NamedTuple):
    """The result of `cache_take`."""

    inverses: list[tf.Tensor]  # N of int32, of the shapes of the ids: positions in `keys`
    keys: tf.Tensor  # int64[u]: unique keys, in order of first occurrence
    order: tf.Tensor  # int32[u]: position of each key in the concatenated rows of `slots`, `positions` and `absent`
    slots: tf.Tensor  # int32[h]: slots of the keys that are on the device
    copy: tf.Tensor  # int64: number of the copy made ahead that this lookup takes; 0: none
    positions: tf.Tensor  # int32[c]: positions in the copy
    absent: tf.Tensor  # int64[u - h - c]: keys whose rows are on the host
    ticket: tf.Tensor  # int64: for `cache_check_taken`


def cache_take(cache: tf.Tensor, ids: Sequence[tf.Tensor]) -> Taken:
    """Returns the unique keys of the ids of N features of one table, and the places of their rows.

    The op waits for rows that are being copied to the device.

    Args:
        cache: The number of the cache.
        ids: The ids of each feature, N of int64 of any shape.
    """
    return Taken(*lib.tsps_cache_take(cache, ids))


def cache_check_taken(cache: tf.Tensor, ticket: tf.Tensor, attempt: tf.Tensor) -> tf.Tensor:
    """Checks that no step of another thread moved rows since `cache_take`. Called after the slots have been read.

    Args:
        cache: The number of the cache.
        ticket: The ticket of the lookup.
        attempt: The number of the attempt at this lookup, an int64 scalar from 1.

    Returns:
        0 if the rows that were read are those of the lookup's keys, or else the number of the next attempt: the lookup
        must begin again. An int64 scalar.

    Raises:
        FailedPreconditionError: This was the last attempt.
    """
    return lib.tsps_cache_check_taken(cache, ticket, attempt)


def cache_stage(cache: tf.Tensor, index: tf.Tensor, lookups: Sequence[Sequence[tf.Tensor]]) -> tf.Operation:
    """Announces a batch's lookups of a cache's table, in a dataset. The op waits for nothing.

    Args:
        cache: The number of the cache.
        index: The index of the batch in its iterator, int64. 0 drops the batches announced before.
        lookups: The ids of each lookup, as the lookup will pass them to `cache_take`.
    """
    ids = [feature_ids for lookup in lookups for feature_ids in lookup]
    return lib.tsps_cache_stage(cache, index, ids, lookups=[len(lookup) for lookup in lookups])


class Copy(NamedTuple):
    """The result of `cache_next_copy`."""

    state: tf.Tensor  # int64: 0 continue; 1 continue, and warn that announced ids are not looked up; 2 end
    copy: tf.Tensor  # int64: number of the copy; 0: no rows
    rows: tf.Tensor  # float32[n, dim]
    removed: tf.Tensor  # int64[r]: numbers of copies that no lookup will take


def cache_next_copy(cache: tf.Tensor, path: tf.Tensor, uuid: str, copied: int) -> Copy:
    """Blocks until rows are to be copied to the device, and reads them. A dedicated thread calls it eagerly.

    Args:
        cache: The number of the cache.
        path: The path of the table.
        uuid: The uuid of the table.
        copied: The number of the copy that the caller has put on the device since the last call; 0: none.
    """
    return Copy(*lib.tsps_cache_next_copy(cache, path, uuid, tf.constant(copied, tf.int64)))


def cache_close(cache: tf.Tensor) -> None:
    """Ends `cache_next_copy`. No rows are copied ahead afterwards."""
    lib.tsps_cache_close(cache)


class Plan(NamedTuple):
    """The result of `cache_plan`. Here a slot is a place for one row on the device."""

    rows: list[tf.Tensor]  # P of float32[e, width], of the entering keys: the embedding and each optimizer slot
    plan: tf.Tensor  # int64: number of the plan
    held: tf.Tensor  # int32[h]: positions of the keys that have a slot after the plan
    slots: tf.Tensor  # int32[h]: slots of these keys
    entering: tf.Tensor  # int32[e]: slots of the entering keys
    victims: tf.Tensor  # int32[v]: slots that other keys get, and whose rows must be written to the host
    victim_keys: tf.Tensor  # int64[v]: keys of these rows
    left: tf.Tensor  # int32[u - h]: positions of the keys whose rows stay on the host


def cache_plan(cache: tf.Tensor, path: tf.Tensor, uuid: str, keys: tf.Tensor, planes: int) -> Plan:
    """Plans which rows a step moves between host and device. No row moves before `cache_step`.

    Args:
        cache: The number of the cache.
        path: The path of the table.
        uuid: The uuid of the table.
        keys: The keys of the step's gradients, unique, int64[u].
        planes: The number of the optimizer's slots plus 1 for the embedding.

    Raises:
        InvalidArgumentError: The policy is "lru", and the step has more keys than the cache has rows.
    """
    return Plan(*lib.tsps_cache_plan(cache, path, uuid, keys, P=planes))


def cache_step(
    path: str,
    step: tf.Tensor,
    paths: Sequence[tf.Tensor],
    uuids: Sequence[tf.Tensor],
    keys: Sequence[tf.Tensor],
    grads: Sequence[tf.Tensor],
    hyper: Sequence[tf.Tensor],
    optimizer: tf.Tensor,
    caches: Sequence[tf.Tensor],
    plans: Sequence[tf.Tensor],
    not_finite: Sequence[tf.Tensor],
    victim_keys: Sequence[tf.Tensor],
    victims: Sequence[Sequence[tf.Tensor]],
) -> tf.Tensor:
    """Makes one optimizer step of a process's tables, some of which have caches. Returns the verdict for `check_step`.

    One commit contains the updates of rows on the host and the rows that leave the device. It carries out the plans on
    the host. The caller moves the rows on the device after the step is made.

    Args:
        path: See `make_step`; likewise step, paths, uuids, hyper and optimizer.
        keys: The keys of the gradients of rows on the host, T of int64[u_t].
        grads: These gradients, T of float32[u_t, dim].
        caches: The numbers of the caches, one for each device, T of int64[c]; empty for a table without a cache.
        plans: The numbers of the plans from `cache_plan`, T of int64[c].
        not_finite: The keys whose gradients on the device are not finite, T of int64[n]. The step is refused if there
            are any.
        victim_keys: The keys of all devices from `cache_plan`, T of int64[v].
        victims: The rows of these keys, float32[v, width] for each plane of each of the T tables; empty for a table
            without a cache.
    """
    return lib.tsps_cache_step(
        path,
        step,
        paths,
        uuids,
        keys,
        grads,
        hyper,
        optimizer,
        caches,
        plans,
        not_finite,
        victim_keys,
        [plane for planes in victims for plane in planes],
        planes=[len(planes) for planes in victims],
    )


class Divided(NamedTuple):
    """The result of `cache_divide`."""

    own: list[tf.Tensor]  # D of int64[u_d]: keys of each device, in the order of the argument
    positions: list[tf.Tensor]  # D of int32[u_d]: positions of these keys in the argument
    order: tf.Tensor  # int32[u]: position of each key of the argument in the concatenated `own`


def cache_divide(keys: tf.Tensor, devices: int) -> Divided:
    """Divides keys, int64[u], among devices: each key belongs to the device that keeps its row."""
    return Divided(*lib.tsps_cache_divide(keys, D=devices))


def cache_exchanged(cache: tf.Tensor, rows: tf.Tensor, gradients: tf.Tensor) -> tf.Operation:
    """Counts rows that were copied from a cache's device to others, and gradients that came from other devices."""
    return lib.tsps_cache_exchanged(cache, tf.cast(rows, tf.int64), tf.cast(gradients, tf.int64))


def cache_moved(cache: tf.Tensor, plan: tf.Tensor) -> tf.Operation | None:
    """Records that the device has the rows of a plan, int64, whose step was made.

    Until this call, other ops on the cache wait. After 5 seconds they raise FailedPreconditionError, because the code
    that should have written the rows has failed.
    """
    return lib.tsps_cache_moved(cache, plan)


def cache_draws(path: tf.Tensor, uuid: str, keys: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Returns the random bits for stochastic rounding of rows in a step: int64[n], 64 bits for each of `keys`."""
    return lib.tsps_cache_draws(path, uuid, keys, step)


class Newer(NamedTuple):
    """Rows that are newer on a device than on the host."""

    flush: tf.Tensor  # int64: number of the flush
    slots: tf.Tensor  # int32[n]: slots of the rows on the device
    keys: tf.Tensor  # int64[n]


def cache_newer(cache: tf.Tensor) -> Newer:
    """Begins a flush, and returns the rows that are newer on the device."""
    return Newer(*lib.tsps_cache_newer(cache))


def cache_flush(
    cache: tf.Tensor,
    path: tf.Tensor | str,
    uuid: str,
    newer: Newer,
    rows: tf.Tensor,
    slots: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Ends a flush: writes the rows to the host that no step has trained or moved since the flush began. Writer only.

    The check and the write are atomic: no step can intervene.

    Args:
        cache: The number of the cache.
        path: The path of the table.
        uuid: The uuid of the table.
        newer: The result of `cache_newer` for this flush.
        rows: The rows, copied from the device, float32[n, dim].
        slots: The optimizer's slots, float32[n, dim] each, or float32[n, 1] if the rule keeps one float per row.

    Returns:
        The number of rows written, and the number of rows skipped because of a step, int64. A skipped row is still
        newer on the device, or the step has written it to the host.
    """
    flushed, left = lib.tsps_cache_flush(cache, path, uuid, *newer, rows, list(slots))
    return flushed, left


def cache_clear(cache: tf.Tensor) -> None:
    """Frees all slots, because the host's rows were written outside of steps."""
    lib.tsps_cache_clear(cache)


def cache_counters(cache: tf.Tensor) -> tf.Tensor:
    """Returns the counters of a cache, int64[n], in the order of `CACHE_COUNTERS`."""
    return lib.tsps_cache_counters(cache)
