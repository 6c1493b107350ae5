"""Tables of layers with rows on a device: which can have them, and giving them a cache."""

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
    """Raises UnsupportedError, with the reason, if a table of a layer has a cache and cannot have one."""
    if config.cache is None:
        return
    reasons = {
        f"storage={config.storage!r}": "rows would have three places, and one commit covers two of them."
        if config.storage != "memory"
        else None,
        f"placement={config.placement!r}": "a row is on the machine that owns it, and on no device."
        if config.placement != "replicated"
        else None,
    }
    for option, reason in reasons.items():
        if reason is not None:
            raise UnsupportedError(f"{layer}: a table with {option} cannot have a cache: {reason}")


def refuse_several(config: TableConfig, job: Job) -> None:
    """Raises UnsupportedError if the job has several processes: each would have its own newer rows.

    Raises:
      ValueError: The replicas of a strategy have devices of their own, and the cache names another.
    """
    if job.size > 1:
        raise UnsupportedError(
            f"table {config.name!r}: a cache (cache=...) cannot be in a job of {job.size} processes: every process "
            "would have newer rows than the others. Train with one process, or without a cache."
        )
    assert config.cache is not None
    if _replica_devices() and config.cache.device is not None:
        raise ValueError(
            f"table {config.name!r}: under a tf.distribute strategy rows are on the devices of its replicas. Received: "
            f"DeviceCache(device={config.cache.device!r})"
        )


def _replica_devices() -> list[str]:
    """Of the strategy in whose scope this is called; none if there is none."""
    strategy = active_strategy()
    return [] if strategy is None else [resolve_device(one) for one in strategy.extended.worker_devices]


def attach(binding: TableBinding, cache: DeviceCache, job: Job) -> None:
    """Gives a table its cache, which is flushed before the table is read here, and when a named job ends."""
    assert isinstance(binding, CachedBinding)
    if binding.cache is not None:
        raise ValueError(f"table {binding.path} has a cache already; a table has one")
    store = TableCache(
        binding.path, binding.path_tensor, binding.uuid, binding.config, cache, devices=_replica_devices()
    )
    if binding.optimizer is not None:
        store.bind(binding.optimizer)
    binding.cache = store
    newer_rows.register(binding.path, store)
    if job.identity.name is not None:
        job.collectives.at_exit(store.flush)  # holds it, and its rows, also when the layer is gone
