"""`TableCache`: the rows of one table that are on devices. Each device has the rows of its keys.

Under a strategy with several replicas in a process, each replica's device owns a part of the keys (`cc/core/base/
key_owner.h`). A replica's lookup gets rows from the devices that have them. Its gradients go back there, and are added
up where they are applied. So each row is on one device, and devices exchange rows of batches and their gradients.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.cache.device_store import DeviceStore, resolve_device

if TYPE_CHECKING:
    from tf_sparse_ps.config.device_cache import DeviceCache
    from tf_sparse_ps.config.table_config import TableConfig
    from tf_sparse_ps.optimizers import RowOptimizer

_HOST = "/CPU:0"


class TableCache:
    """The rows of one table that are on devices. The job has one process.

    Attributes:
      options: The options of the cache.
      stores: The rows on each device.
    """

    def __init__(
        self,
        path: str,
        path_tensor: tf.Tensor,
        uuid: str,
        config: TableConfig,
        options: DeviceCache,
        devices: Sequence[str] = (),
    ) -> None:
        """Makes a cache whose slots are all free.

        Args:
          path, path_tensor, uuid, config: The attributes of the table's `TableBinding`.
          options: The options of the cache. Each device has as many rows as they say.
          devices: TensorFlow's names of the replicas' devices. Without names: the device that the options name.

        Raises:
          ValueError: The device that the options name does not exist.
          UnsupportedError: TensorFlow would copy whole variables on a device.
        """
        self.options = options
        names = list(devices) or [resolve_device(options.device)]
        self.stores = [DeviceStore(path, path_tensor, uuid, config, options, name) for name in names]

    @property
    def devices(self) -> list[str]:
        """TensorFlow's full names of the devices."""
        return [store.device for store in self.stores]

    @property
    def device(self) -> str:
        """The device of the replica in which this is called. Outside of replicas: the first device."""
        context = tf.distribute.get_replica_context()
        if context is None or len(self.stores) == 1:
            return self.stores[0].device
        of_replica = {_canonical(device) for device in tf.nest.flatten(list(context.devices))}
        return next((device for device in self.devices if _canonical(device) in of_replica), self.stores[0].device)

    def bind(self, rule: RowOptimizer) -> None:
        """See `DeviceStore.bind`."""
        for store in self.stores:
            store.bind(rule)

    # --- looking up ---

    def take(self, ids: Sequence[tf.Tensor], path: tf.Tensor, after: tf.Tensor) -> tuple[_ops.Unique, tf.Tensor]:
        """Returns the unique keys of one call's ids, and their rows on `device`. In a graph, or eagerly.

        Takes rows that were copied ahead for these ids (`look_ahead`).

        Args:
          ids: N of int64, any shape.
          path: The path of the table, a string scalar.
          after: A tensor that is there when the step before is made.

        Returns:
          The keys and the positions of the ids in them; rows, float32[u, dim].
        """
        if len(self.stores) == 1:
            return self.stores[0].take(ids, path, after, self.stores[0].device)
        device = self.device
        unique, parts = self._divided(ids)
        rows = [store.take([keys], path, after, device)[1] for store, keys in zip(self.stores, parts.own, strict=True)]
        with tf.device(device):
            return unique, tf.gather(tf.concat(rows, 0), parts.order)

    def _divided(self, ids: Sequence[tf.Tensor]) -> tuple[_ops.Unique, _ops.Divided]:
        """Returns the unique keys of one call's ids, and those of each device."""
        with tf.device(_HOST):
            unique = _ops.unique(list(ids), [0] * len(ids), 1)
            return unique, _ops.cache_divide(unique.keys[0], len(self.stores))

    def look_ahead(self) -> None:
        """Starts to copy rows that a dataset announces (`announce`) to the devices ahead of their lookups."""
        for store in self.stores:
            store.look_ahead()

    def announce(self, index: tf.Tensor, lookups: Sequence[Sequence[tf.Tensor]]) -> list[tf.Operation]:
        """Announces, in a dataset, that a batch will be looked up.

        Args:
          index: The number of the batch in its iterator, int64. 0 drops earlier announcements.
          lookups: The ids of each lookup, as they will be passed to `take`.
        """
        if len(self.stores) == 1:
            return [_ops.cache_stage(self.stores[0].number, index, lookups)]
        parts = [self._divided(ids)[1] for ids in lookups]
        return [
            _ops.cache_stage(store.number, index, [[part.own[d]] for part in parts])
            for d, store in enumerate(self.stores)
        ]

    # --- a step ---

    def merge(self, keys: tf.Tensor, gradients: tf.Tensor, device: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Adds up the gradients of equal keys, on a device.

        Args:
          keys: int64[n].
          gradients: float32[n, dim].
          device: The device of the replica that has them.

        Returns:
          int64[u], the unique keys in order of first occurrence, and float32[u, dim], their gradients.
        """
        return self.stores[0].merge(keys, gradients, device)

    def reduce(
        self, keys: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], devices: Sequence[str], reduction: str
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Sends the replicas' gradients to the devices that have the keys, and adds them up there, in their order.

        Args:
          keys: int64[u_r], unique, of each replica.
          gradients: float32[u_r, dim] of each replica.
          devices: The device of each replica.
          reduction: What the sum is divided by: "frequency", "average" or "sum" (`sparse_reducer.REDUCTIONS`).

        Returns:
          The unique keys of each store, and their gradients on its device.
        """
        with tf.device(_HOST):
            parts = [_ops.cache_divide(replica_keys, len(self.stores)) for replica_keys in keys]
        return [self._reduce(d, parts, gradients, devices, reduction) for d in range(len(self.stores))]

    def _reduce(
        self,
        d: int,
        parts: Sequence[_ops.Divided],
        gradients: Sequence[tf.Tensor],
        devices: Sequence[str],
        reduction: str,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        store, keys = self.stores[d], [part.own[d] for part in parts]
        sent = []
        for part, rows, device in zip(parts, gradients, devices, strict=True):
            with tf.device(device):
                sent.append(tf.gather(rows, part.positions[d]))
        with tf.device(_HOST):
            unique = _ops.unique(keys, [0] * len(keys), 1)
            from_others = [
                tf.size(replica_keys)
                for replica_keys, device in zip(keys, devices, strict=True)
                if _canonical(device) != _canonical(store.device)
            ]
            if from_others:
                _ops.cache_exchanged(store.number, 0, tf.add_n(from_others))
        with tf.device(store.device):
            positions, n = tf.concat(unique.inverses, 0), tf.size(unique.keys[0])
            sums = tf.math.unsorted_segment_sum(tf.concat(sent, 0), positions, n)
            if reduction == "frequency":
                sums /= tf.math.unsorted_segment_sum(tf.ones_like(positions, tf.float32), positions, n)[:, tf.newaxis]
            elif reduction == "average":
                sums /= tf.constant(len(parts), tf.float32)
            return unique.keys[0], sums

    def flush_after(self, step: tf.Tensor) -> None:
        """See `DeviceStore.flush_after`."""
        for store in self.stores:
            store.flush_after(step)

    # --- the host's rows ---

    def flush(self) -> None:
        """Writes all rows that are newer here to the host, in one commit per device. See `DeviceStore.flush`."""
        for store in self.stores:
            store.flush()

    @property
    def failed(self) -> bool:
        """See `DeviceStore.failed`."""
        return any(store.failed for store in self.stores)

    @contextlib.contextmanager
    def host_writes(self, *, whole: bool) -> Iterator[None]:
        """See `DeviceStore.host_writes`."""
        with contextlib.ExitStack() as stack:
            for store in self.stores:
                stack.enter_context(store.host_writes(whole=whole))
            yield

    def statistics(self) -> dict[str, float]:
        """Returns `DeviceStore.statistics`, added up over the devices."""
        each = [store.statistics() for store in self.stores]
        sums = {name: math.fsum(statistics[name] for statistics in each) for name in each[0]}
        hit_rate = sums["hits"] / sums["keys"] if sums["keys"] else 0.0
        return {**sums, "steps": each[0]["steps"], "hit_rate": hit_rate}


def _canonical(device: str) -> tuple[Any, Any]:
    """Returns the type and number of a device, which differ between the devices of this process."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index or 0
