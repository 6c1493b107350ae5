"""`lookahead`: what the next batches need is known, and fetched, ahead of them.

- For a tiered table, a thread reads the rows of the next batches from disk (`cc/kernels/stager.h`).
- For a sharded table, every step pulls the rows of the next batch (`reduction/rows_ahead.py`).
- For a table with a device cache, a thread copies the rows of the next batches to the device (`cache/copier.py`).

The dataset itself only announces the batches. It makes no collective operation.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, Literal

import tensorflow as tf

from tf_sparse_ps import _ops, _table
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.config.plain_numbers import plain
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.layers.table_keys import KeysOf, table_keys
from tf_sparse_ps.layers.table_layer import TableLayer

MAX_BATCHES = 128
MAX_QUEUED_BYTES = 256 * 2**20
MAX_BATCHES_TO_DEVICE = 14
_TO_DEVICE = 8
_datasets = itertools.count()


def lookahead(
    dataset: tf.data.Dataset, model: Any, *, batches: int | Literal["auto"] = "auto", keys_of: KeysOf | None = None
) -> tf.data.Dataset:
    """Fetches the rows that the next batches need, from disk, other machines or to a device, while others train.

    The last stage of a dataset: after `batch`, and after `shuffle`, `cache` and `prefetch`, if there are any. Of tables
    that are partly on disk (`tsps.Tiered`), spread over machines (`tsps.Sharded`) or partly on a device
    (`tsps.DeviceCache`); others need nothing. A row that is not there in time is fetched when it is needed. The numbers
    never change, but for those of a cache with policy "admission", which keeps rows that coming batches need.

    Args:
      dataset: Yields batches as `model.fit` takes them.
      model: A Keras model whose table layers are built: functional, Sequential or subclassed.
      batches: Length of a pass: so many batches' rows are read together, while as many train. Longer passes read more
        rows with one access to the disk, and take more room for what is read. "auto": as many as there is room for,
        at most 128 and 256 MiB of elements; takes an element of the dataset. Rows of other machines come one batch
        ahead, whatever it is. Rows of a device cache are copied so many batches ahead, at most 14; "auto": 8.
      keys_of: See `tf_sparse_ps.layers.table_keys.table_keys`.

    Returns:
      A dataset of the same elements in the same order, with the same `element_spec` and cardinality.

    Raises:
      ValueError: `batches` is no positive integer, or too many for a device cache; the model has no built table
        layer, or cannot be called on what the dataset yields; its keys cannot be known ahead.
      UnsupportedError: No table of the model is partly on disk, sharded or partly on a device.

    Example:
      dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).shuffle(10_000).batch(4096)
      model.fit(tsps.lookahead(dataset, model, batches=32))
    """
    batches = plain(batches)
    if batches != "auto" and (not isinstance(batches, int) or isinstance(batches, bool) or batches < 1):
        raise ValueError(f'`batches` must be a positive integer or "auto". Received: batches={batches!r}')
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(f"`dataset` must be a tf.data.Dataset. Received: {type(dataset).__name__}")
    keys = table_keys(model, keys_of=keys_of)
    every = [one for layer in _keras.layers_of(model, TableLayer) for one in layer.bindings]
    tiered = {os.path.basename(one.path): one for one in every if one.config.storage != "memory"}
    sharded = {os.path.basename(one.path): one for one in every if isinstance(one.config.placement, Sharded)}
    cached = {os.path.basename(one.path): cache for one in every if (cache := cache_of(one)) is not None}
    if not tiered and not sharded and not cached:
        raise UnsupportedError(
            f"model {model.name!r} has all its rows in memory of this machine: there is nothing to look ahead for. See "
            "tsps.Tiered, tsps.Sharded and tsps.DeviceCache"
        )
    # A job of one machine has no other to fetch from.
    sharded = {name: one for name, one in sharded.items() if one.placement == "sharded"}
    n = _choose(dataset, keys, tiered, bool(cached)) if batches == "auto" else batches
    waiting = 2 * n if tiered or sharded else n
    if cached and waiting > MAX_BATCHES_TO_DEVICE:
        raise ValueError(
            f"`batches` must be at most {MAX_BATCHES_TO_DEVICE} for tables with a cache on a device, "
            f"{MAX_BATCHES_TO_DEVICE // 2} where others are on disk or sharded. Received: batches={batches!r}"
        )
    for one in cached.values():
        one.look_ahead()
    number = next(_datasets)
    replicas = max((len(one.devices) for one in cached.values()), default=1)

    numbers = {name: _table.Group.open(one.group.path).find_table(name) for name, one in sharded.items()}

    def announce(index: tf.Tensor, element: Any) -> Any:
        found = keys(element) if tiered or sharded else {}
        announced: list[tf.Operation] = []
        for name, lookups in _lookups(keys, element, replicas).items() if cached else ():
            if name in cached:
                announced += cached[name].announce(index, lookups)
        for name, one in tiered.items():
            nodes, node = (one.nodes, one.node) if name in sharded else (1, 0)
            if name in found:
                announced.append(_ops.announce(one.path_tensor, one.uuid, found[name], number, index, n, nodes, node))
        announced += [
            _ops.pull_announce(one.group.path, numbers[name], found[name], number, index, n)
            for name, one in sharded.items()
            if name in found
        ]
        with tf.control_dependencies(announced):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    ahead = dataset.enumerate().map(announce)
    if int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        # TensorFlow 2.15 numbers an endless dataset as if it ended.
        ahead = ahead.apply(tf.data.experimental.assert_cardinality(dataset.cardinality()))
    # The last stage: behind another one tf.data would put a queue of its own, and announce more.
    return ahead.prefetch(waiting)


def _lookups(keys: Any, element: Any, replicas: int) -> dict[str, list[list[tf.Tensor]]]:
    """Returns what the replicas will look up for an element, by table: `TableKeys.lookups` of each replica's part."""
    if replicas == 1:
        found: dict[str, list[list[tf.Tensor]]] = keys.lookups(element)
        return found
    together: dict[str, list[list[tf.Tensor]]] = {}
    for part in _parts(element, replicas):
        for name, lookups in keys.lookups(part).items():
            together.setdefault(name, []).extend(lookups)
    return together


def _parts(element: Any, replicas: int) -> list[Any]:
    """The parts of a global batch, as tf.distribute cuts it: of equal size, the first ones longer by one element."""
    leaves = tf.nest.flatten(element)
    size = leaves[0].shape[0]
    if size is None:
        n = tf.shape(leaves[0], tf.int64)[0] if not isinstance(leaves[0], tf.SparseTensor) else leaves[0].dense_shape[0]
        sizes = [-(-n // replicas)] * replicas  # what it does with batches of unknown size
    else:
        sizes = [size // replicas + (r < size % replicas) for r in range(replicas)]
    ends = list(itertools.accumulate(sizes, initial=0))
    return [
        tf.nest.map_structure(lambda leaf, a=a, b=b: _rows(leaf, a, b), element) for a, b in itertools.pairwise(ends)
    ]


def _rows(leaf: Any, begin: Any, end: Any) -> Any:
    """Elements [begin, end) of a batch."""
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[begin:end]
    start = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(leaf.dense_shape[1:])], 0)
    size = tf.concat([[tf.cast(end - begin, tf.int64)], leaf.dense_shape[1:]], 0)
    return tf.sparse.slice(leaf, start, size)


def _choose(dataset: tf.data.Dataset, keys: Any, tiered: dict[str, Any], cached: bool) -> int:
    """Chooses the number of batches: as many as fit twice; for tables in memory two, or what helps a cache."""
    if not tiered:
        return _TO_DEVICE if cached else 2
    for element in dataset.take(1):
        leaves = tf.nest.flatten(element, expand_composites=True)
        size = sum(leaf.dtype.size * int(tf.size(leaf)) for leaf in leaves if leaf.dtype != tf.string)
        n = min(MAX_BATCHES, MAX_QUEUED_BYTES // (2 * max(size, 1)))
        for name, found in keys(element).items():
            if cached:
                n = min(n, MAX_BATCHES_TO_DEVICE // 2)
            if name in tiered:
                n = min(n, tiered[name].reader().stats()["rows_to_stage"] // (2 * max(int(tf.size(found)), 1)))
        return max(1, n)
    return 1
