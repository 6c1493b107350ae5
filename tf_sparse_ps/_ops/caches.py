"""Tables with rows on a device: what the host decides and keeps. The rows there are variables, moved by others.

A cache is named by a number, an int64 scalar; 0 is none. docs/device-cache.md says how a step goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_ps._ops.library import lib

CACHE_COUNTERS = (
    "looked_up",  # keys, by forward passes
    "missed",  # of them, those whose rows came from the host
    "steps",
    "keys",  # of steps
    "hits",  # of them, those that had slots
    "entered",  # that got one
    "evicted",
    "written",  # rows of evicted keys that went to the host
    "flushed",  # rows
    "newer",  # rows that are newer on the device, now
    "announced",  # look-ups, by tsps.lookahead
    "taken",  # of them, those that came
    "dropped",  # of them, those that others went past
    "copied_ahead",  # rows
    "used",  # of them
    "waited_ns",  # by look-ups, for rows that were being copied
    "pulled",  # rows that went to other devices, for their look-ups
    "pushed",  # gradients that came from other devices
    "moving",  # 1: a step was made, and its rows on the device were not written yet
)


def cache_create(slots: int, policy: str, table: str) -> tf.Tensor:
    """Makes a cache, all of whose rows are free; returns its number.

    Args:
        slots: rows.
        policy: "admission" or "lru".
        table: path of its table. While rows are newer on the device, a file beside it says since which step.
    """
    return lib.tsps_cache_create(tf.constant(slots, tf.int64), policy, table)


def cache_remove(cache: tf.Tensor | int) -> None:
    """Removes a cache, if it is there."""
    lib.tsps_cache_remove(tf.cast(cache, tf.int64))


class Taken(NamedTuple):
    """What `cache_take` returns."""

    inverses: list[tf.Tensor]  # N of int32, of the shapes of the ids: positions in the keys
    keys: tf.Tensor  # int64[u], unique, in order of first occurrence
    order: tf.Tensor  # int32[u]: positions of the keys in the rows of `slots`, `positions`, `absent`, joined
    slots: tf.Tensor  # int32[h]
    copy: tf.Tensor  # int64: number of the rows that were copied ahead and are taken with this; 0: none
    positions: tf.Tensor  # int32[c], in the copy
    absent: tf.Tensor  # int64[u - h - c], keys


def cache_take(cache: tf.Tensor, ids: Sequence[tf.Tensor]) -> Taken:
    """The unique keys of N features' ids, int64 of any shape, of one table, and where their rows are.

    Waits for rows that are being copied to the device at the moment.
    """
    return Taken(*lib.tsps_cache_take(cache, ids))


def cache_stage(cache: tf.Tensor, index: tf.Tensor, lookups: Sequence[Sequence[tf.Tensor]]) -> tf.Operation:
    """In a dataset: a batch's look-ups of a cache's table. Waits for nothing.

    Args:
        cache: its number.
        index: int64, of the batch in its iterator. 0 drops what was announced before.
        lookups: the ids of each, as `cache_take` will be given them.
    """
    ids = [one for lookup in lookups for one in lookup]
    return lib.tsps_cache_stage(cache, index, ids, lookups=[len(one) for one in lookups])


class Copy(NamedTuple):
    """What `cache_next_copy` returns."""

    state: tf.Tensor  # int64: 0 go on; 1 go on, and say that what is announced is not looked up; 2 the end
    copy: tf.Tensor  # int64, the number of the rows; 0: there are none
    rows: tf.Tensor  # float32[n, dim]
    removed: tf.Tensor  # int64[r], numbers of copies that nobody will take


def cache_next_copy(cache: tf.Tensor, path: tf.Tensor, uuid: str, copied: int) -> Copy:
    """Blocks until rows are to be copied to the device, and reads them. For a thread of its own, eagerly.

    Args:
        cache, path, uuid: of the cache, and of its table.
        copied: the copy that is on the device since; 0: none.
    """
    return Copy(*lib.tsps_cache_next_copy(cache, path, uuid, tf.constant(copied, tf.int64)))


def cache_close(cache: tf.Tensor) -> None:
    """Ends `cache_next_copy`; nothing is copied ahead any more."""
    lib.tsps_cache_close(cache)


class Plan(NamedTuple):
    """What `cache_plan` returns."""

    rows: list[tf.Tensor]  # of keys that enter: float32[e, width], the embedding and the slots of the optimizer
    plan: tf.Tensor  # int64: its number
    held: tf.Tensor  # int32[h]: positions in the keys of those that have slots, when it is done
    slots: tf.Tensor  # int32[h]: theirs
    entering: tf.Tensor  # int32[e]: slots of those that enter
    victims: tf.Tensor  # int32[v]: slots whose rows the host lacks, and which other keys get
    victim_keys: tf.Tensor  # int64[v]
    left: tf.Tensor  # int32[u - h]: positions in the keys of those whose rows stay on the host


def cache_plan(cache: tf.Tensor, path: tf.Tensor, uuid: str, keys: tf.Tensor, planes: int) -> Plan:
    """Decides what a step of unique keys, int64[u], moves. Nothing is done before `cache_step`.

    Args:
        cache, path, uuid: of the cache, and of its table.
        keys: of the step's gradients.
        planes: 1 and the number of the optimizer's slots.

    Raises:
        InvalidArgumentError: the policy is "lru", and there are more keys than rows in the cache.
    """
    rows, *others = lib.tsps_cache_plan(cache, path, uuid, keys, P=planes)
    return Plan(rows, *others)


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
    """One optimizer step of a process's tables, of which some have caches. Returns the verdict, for `check_step`.

    One commit has the updates of rows on the host and the rows that leave the device. The plans are done with it; what
    they move on the device is for the caller, when the step is made.

    Args:
        path, step, paths, uuids, hyper, optimizer: as in `make_step`.
        keys, grads: of rows on the host.
        caches: T of int64[c]: numbers, one for each device; none where a table has no cache.
        plans: T of int64[c], from `cache_plan`.
        not_finite: T of int64[n]: keys whose gradients on the device are not finite; if there is one, the step is
            refused.
        victim_keys: T of int64[v], from `cache_plan`, of all devices.
        victims: T of the rows that were in their slots: float32[v, width] for each plane; none where there is no cache.
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
        [plane for one in victims for plane in one],
        planes=[len(one) for one in victims],
    )


class Divided(NamedTuple):
    """What `cache_divide` returns."""

    own: list[tf.Tensor]  # D of int64[u_d]: the keys of each device, in their order
    positions: list[tf.Tensor]  # D of int32[u_d]: theirs in the keys
    order: tf.Tensor  # int32[u]: of each key, its position in `own`, joined


def cache_divide(keys: tf.Tensor, devices: int) -> Divided:
    """Which of a number of devices has the row of each of `keys`, int64[u]."""
    return Divided(*lib.tsps_cache_divide(keys, D=devices))


def cache_exchanged(cache: tf.Tensor, rows: tf.Tensor, gradients: tf.Tensor) -> tf.Operation:
    """Counts rows that went from a cache's device to others, and gradients that came from there."""
    return lib.tsps_cache_exchanged(cache, tf.cast(rows, tf.int64), tf.cast(gradients, tf.int64))


def cache_moved(cache: tf.Tensor, plan: tf.Tensor) -> tf.Operation | None:
    """The device has the rows of a plan, int64, whose step was made. Until then nobody else gets anything of the cache.

    Who asks before that waits for a while, and then gets a FailedPreconditionError: what should have written the rows
    has failed.
    """
    return lib.tsps_cache_moved(cache, plan)


def cache_draws(path: tf.Tensor, uuid: str, keys: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """What stochastic rounding of rows in a step depends on: int64[n], 64 bits for each of `keys`, int64[n]."""
    return lib.tsps_cache_draws(path, uuid, keys, step)


class Newer(NamedTuple):
    """Rows that are newer on a device than on the host."""

    flush: tf.Tensor  # int64, the number of the flush that has found them
    slots: tf.Tensor  # int32[n]
    keys: tf.Tensor  # int64[n]


def cache_newer(cache: tf.Tensor) -> Newer:
    """Begins a flush: finds the rows that are newer on the device."""
    return Newer(*lib.tsps_cache_newer(cache))


def cache_flush(
    cache: tf.Tensor,
    path: tf.Tensor | str,
    uuid: str,
    newer: Newer,
    rows: tf.Tensor,
    slots: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Ends a flush: gives the host the rows that no step has trained or moved since the flush began. Writer only.

    The check and the write are one: no step comes between.

    Args:
        cache: its number.
        path: of the table.
        uuid: of the table.
        newer: of the flush.
        rows: float32[n, dim], copied from the device.
        slots: float32[n, dim] for every slot, float32[n, 1] of a rule that keeps one float per row.

    Returns:
        How many rows the host was given, and how many were left because of a step, int64. The latter are still newer
        on the device, or the step has given them to the host.
    """
    flushed, left = lib.tsps_cache_flush(cache, path, uuid, *newer, rows, list(slots))
    return flushed, left


def cache_clear(cache: tf.Tensor) -> None:
    """Frees all slots: the host's rows were written by others."""
    lib.tsps_cache_clear(cache)


def cache_counters(cache: tf.Tensor) -> tf.Tensor:
    """int64[n]: `CACHE_COUNTERS`."""
    return lib.tsps_cache_counters(cache)
