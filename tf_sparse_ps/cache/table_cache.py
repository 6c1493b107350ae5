"""`TableCache`: the rows of one table that are on devices, on each those of its keys.

Under a strategy with several replicas in a process each replica's device has a part of the keys (`cc/core/base/
key_owner.h`). A replica's look-up gets rows from the devices that have them; its gradients go back there, and are added
up where they are applied. So each row is on one device, and between devices go rows of batches and their gradients.
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
    """See the module. Of a table of this process, which is the job's only one.

    Attributes:
      options: As they were given.
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
        """Makes it, with all slots free.

        Args:
          path, path_tensor, uuid, config: Of the table (`TableBinding`).
          options: Of the cache; on each device.
          devices: TensorFlow's names of the replicas' devices; none: the one that the options name.

        Raises:
          ValueError: There is no such device.
        """
        self.options = options
        names = list(devices) or [resolve_device(options.device)]
        self.stores = [DeviceStore(path, path_tensor, uuid, config, options, one) for one in names]

    @property
    def devices(self) -> list[str]:
        """Of the stores, TensorFlow's full names."""
        return [one.device for one in self.stores]

    @property
    def device(self) -> str:
        """The device of the replica in which this is called; without one, the first."""
        context = tf.distribute.get_replica_context()
        if context is None or len(self.stores) == 1:
            return self.stores[0].device
        own = {_canonical(one) for one in tf.nest.flatten(list(context.devices))}
        return next((one for one in self.devices if _canonical(one) in own), self.stores[0].device)

    def bind(self, rule: RowOptimizer) -> None:
        """See `DeviceStore.bind`."""
        for one in self.stores:
            one.bind(rule)

    # --- looking up ---

    def take(self, ids: Sequence[tf.Tensor], path: tf.Tensor, after: tf.Tensor) -> tuple[_ops.Unique, tf.Tensor]:
        """The unique keys of one call's ids, and their rows, on `device`. In a graph, or eagerly.

        Rows that were copied ahead for these ids (`look_ahead`) are taken.

        Args:
          ids: N of int64, any shape.
          path: What names the table.
          after: What there is when the step before is made.

        Returns:
          The keys and the positions of the ids in them; rows, float32[u, dim].
        """
        if len(self.stores) == 1:
            return self.stores[0].take(ids, path, after, self.stores[0].device)
        device = self.device
        found, parts = self._divided(ids)
        rows = [store.take([own], path, after, device)[1] for store, own in zip(self.stores, parts.own, strict=True)]
        with tf.device(device):
            return found, tf.gather(tf.concat(rows, 0), parts.order)

    def _divided(self, ids: Sequence[tf.Tensor]) -> tuple[_ops.Unique, _ops.Divided]:
        """The unique keys of one call's ids, and those of each device."""
        with tf.device(_HOST):
            found = _ops.unique(list(ids), [0] * len(ids), 1)
            return found, _ops.cache_divide(found.keys[0], len(self.stores))

    def look_ahead(self) -> None:
        """From now on rows that a dataset announces (`announce`) are copied to the devices ahead."""
        for one in self.stores:
            one.look_ahead()

    def announce(self, index: tf.Tensor, lookups: Sequence[Sequence[tf.Tensor]]) -> list[tf.Operation]:
        """In a dataset: a batch will be looked up.

        Args:
          index: int64, of the batch in its iterator. 0 drops what was announced before.
          lookups: The ids of each, as `take` will be given them.
        """
        if len(self.stores) == 1:
            return [_ops.cache_stage(self.stores[0].number, index, lookups)]
        parts = [self._divided(ids)[1] for ids in lookups]
        return [
            _ops.cache_stage(store.number, index, [[one.own[d]] for one in parts])
            for d, store in enumerate(self.stores)
        ]

    # --- a step ---

    def merge(self, keys: tf.Tensor, gradients: tf.Tensor, device: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Adds gradients of equal keys up, on a device.

        Args:
          keys: int64[n].
          gradients: float32[n, dim].
          device: Of the replica that has them.

        Returns:
          int64[u] and float32[u, dim]: unique keys, in order of first occurrence.
        """
        return self.stores[0].merge(keys, gradients, device)

    def reduce(
        self, keys: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], devices: Sequence[str], reduction: str
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Sends the replicas' gradients to the devices that have the keys, and adds them up there, in their order.

        Args:
          keys: R of int64[u_r], unique.
          gradients: R of float32[u_r, dim].
          devices: R: where they are.
          reduction: What the sum is divided by: "frequency", "average" or "sum" (`sparse_reducer.REDUCTIONS`).

        Returns:
          Of each store, its keys, unique, and their gradients, on its device.
        """
        with tf.device(_HOST):
            parts = [_ops.cache_divide(one, len(self.stores)) for one in keys]
        return [self._reduce(d, parts, gradients, devices, reduction) for d in range(len(self.stores))]

    def _reduce(
        self,
        d: int,
        parts: Sequence[_ops.Divided],
        gradients: Sequence[tf.Tensor],
        devices: Sequence[str],
        reduction: str,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        store, own = self.stores[d], [one.own[d] for one in parts]
        sent = []
        for one, rows, device in zip(parts, gradients, devices, strict=True):
            with tf.device(device):
                sent.append(tf.gather(rows, one.positions[d]))
        with tf.device(_HOST):
            found = _ops.unique(own, [0] * len(own), 1)
            from_others = [
                tf.size(one) for one, device in zip(own, devices, strict=True) if not _same(device, store.device)
            ]
            if from_others:
                _ops.cache_exchanged(store.number, 0, tf.add_n(from_others))
        with tf.device(store.device):
            positions, n = tf.concat(found.inverses, 0), tf.size(found.keys[0])
            sums = tf.math.unsorted_segment_sum(tf.concat(sent, 0), positions, n)
            if reduction == "frequency":
                sums /= tf.math.unsorted_segment_sum(tf.ones_like(positions, tf.float32), positions, n)[:, tf.newaxis]
            elif reduction == "average":
                sums /= tf.constant(len(parts), tf.float32)
            return found.keys[0], sums

    def flush_after(self, step: tf.Tensor) -> None:
        """See `DeviceStore.flush_after`."""
        for one in self.stores:
            one.flush_after(step)

    # --- the host's rows ---

    def flush(self) -> None:
        """Gives the host all rows that are newer here, in one commit for each device. See `DeviceStore.flush`."""
        for one in self.stores:
            one.flush()

    @property
    def failed(self) -> bool:
        """Whether a step was made on the host and not here: rows are lost, and what is here is not to be used."""
        return any(one.failed for one in self.stores)

    @contextlib.contextmanager
    def host_writes(self, *, whole: bool) -> Iterator[None]:
        """See `DeviceStore.host_writes`."""
        with contextlib.ExitStack() as stack:
            for one in self.stores:
                stack.enter_context(one.host_writes(whole=whole))
            yield

    def statistics(self) -> dict[str, float]:
        """What it did since it was made: `DeviceStore.statistics`, of several devices the sums."""
        each = [one.statistics() for one in self.stores]
        found = {name: math.fsum(one[name] for one in each) for name in each[0]} | {"steps": each[0]["steps"]}
        return {**found, "hit_rate": found["hits"] / found["keys"] if found["keys"] else 0.0}


def _same(one: str, other: str) -> bool:
    return _canonical(one) == _canonical(other)


def _canonical(device: str) -> tuple[Any, Any]:
    """What tells devices of this process apart."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index or 0
