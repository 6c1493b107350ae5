"""Tables of layers with a device cache: `refuse` checks whether a table can have one, and `attach` gives it one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_sparse_ps.cache.device_store import resolve_device
from tf_sparse_ps.cache.table_cache import TableCache
from tf_sparse_ps.collectives import active_strategy
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.cached_binding import CachedBinding
from tf_sparse_ps.table import newer_rows

if TYPE_CHECKING:
    from tf_sparse_ps.config.device_cache import DeviceCache
    from tf_sparse_ps.config.table_config import TableConfig
    from tf_sparse_ps.job.job import Job
    from tf_sparse_ps.job.table_binding import TableBinding


def refuse(config: TableConfig, layer: str) -> None:
    """Raises UnsupportedError, with the reason, if a layer's table is to have a cache and cannot have one."""
    if config.cache is None:
        return
    reasons = {
        f"storage={config.storage!r}": "a row would have three places, and a commit covers only two of them."
        if config.storage != "memory"
        else None,
        f"placement={config.placement!r}": "only the machine that owns a row keeps it."
        if config.placement != "replicated"
        else None,
    }
    for option, reason in reasons.items():
        if reason is not None:
            raise UnsupportedError(
                f"{layer}: a table with {option} cannot have a cache: {reason} Leave out the cache or this option."
            )


def refuse_several(config: TableConfig, job: Job) -> None:
    """Checks that the processes and devices of a job allow a cache.

    Raises:
      UnsupportedError: The job has several processes, each of which would have its own newer rows.
      ValueError: A strategy determines the devices of its replicas, and the cache also names a device.
    """
    if job.size > 1:
        raise UnsupportedError(
            f"table {config.name!r} cannot have a cache (cache=...) in a job of {job.size} processes. Every process "
            "would have newer rows than the others. Train with one process, or without a cache."
        )
    assert config.cache is not None
    if _replica_devices() and config.cache.device is not None:
        raise ValueError(
            f"table {config.name!r}: under a tf.distribute strategy, rows are on the devices of its replicas. Leave "
            f"device out. Received: DeviceCache(device={config.cache.device!r})"
        )


def _replica_devices() -> list[str]:
    """Returns the devices of the active strategy's replicas. Empty: no strategy is active."""
    strategy = active_strategy()
    return [] if strategy is None else [resolve_device(device) for device in strategy.extended.worker_devices]


def attach(binding: TableBinding, cache: DeviceCache, job: Job) -> None:
    """Gives a table its cache. The cache is flushed before this process reads the table, and when a named job ends.

    Raises:
      ValueError: The table has a cache.
    """
    assert isinstance(binding, CachedBinding)
    if binding.cache is not None:
        raise ValueError(f"table {binding.path} already has a cache, and a table can have only one")
    store = TableCache(
        binding.path, binding.path_tensor, binding.uuid, binding.config, cache, devices=_replica_devices()
    )
    if binding.optimizer is not None:
        store.bind(binding.optimizer)
    binding.cache = store
    newer_rows.register(binding.path, store)
    if job.identity.name is not None:
        job.collectives.at_exit(store.flush)  # keeps the cache and its rows, also after the layer was deleted
