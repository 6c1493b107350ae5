"""`lookahead`: fetches the rows that the next batches need.

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
    """Fetches the rows of the next batches from disk or from other machines, or copies them to a device.

    Call it last on a dataset: after `batch`, and after `shuffle`, `cache` and `prefetch`. It serves tables that are
    partly on disk (`tsps.Tiered`), spread over machines (`tsps.Sharded`) or partly on a device (`tsps.DeviceCache`). A
    row that has not come in time is fetched when it is needed, so the results do not change. The exception is a cache
    with policy "admission", which keeps rows that the next batches need.

    Args:
      dataset: Yields batches as `model.fit` takes them.
      model: A Keras model whose table layers are built: functional, Sequential or subclassed.
      batches: The number of batches in a pass. The rows of a pass are read from disk together, while the pass before
        trains. Longer passes read more rows with one access to the disk, and need more memory for them. Rows are copied
        to a device cache this many batches ahead, at most 14. Rows of other machines always come one batch ahead.
        "auto": 8 for a device cache; for disks, as many as fit into the memory for such rows, at most 128 batches and
        256 MiB of elements. It takes one element of the dataset to find out.
      keys_of: See `tf_sparse_ps.layers.table_keys.table_keys`.

    Returns:
      A dataset of the same elements in the same order, with the same `element_spec` and cardinality.

    Raises:
      ValueError: `batches` is not a positive integer, or too large for a device cache; or the model has no built table
        layer, cannot be called on the elements of the dataset, or computes ids in a way that hides them.
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
    tables = {os.path.basename(b.path): b for layer in _keras.layers_of(model, TableLayer) for b in layer.bindings}
    tiered = {name: table for name, table in tables.items() if table.config.storage != "memory"}
    sharded = {name: table for name, table in tables.items() if isinstance(table.config.placement, Sharded)}
    cached = {name: cache for name, table in tables.items() if (cache := cache_of(table)) is not None}
    if not tiered and not sharded and not cached:
        raise UnsupportedError(
            f"all rows of model {model.name!r} are in this machine's memory, so lookahead has nothing to fetch. Leave "
            "it out, or see tsps.Tiered, tsps.Sharded and tsps.DeviceCache"
        )
    # On one machine, all rows of a sharded table are local.
    sharded = {name: table for name, table in sharded.items() if table.placement == "sharded"}
    n = _choose(dataset, keys, tiered, bool(cached)) if batches == "auto" else batches
    queue_length = 2 * n if tiered or sharded else n
    if cached and queue_length > MAX_BATCHES_TO_DEVICE:
        raise ValueError(
            f"`batches` must be at most {MAX_BATCHES_TO_DEVICE} for tables with a cache on a device, and at most "
            f"{MAX_BATCHES_TO_DEVICE // 2} if other tables are on disk or sharded. Received: batches={batches!r}"
        )
    for cache in cached.values():
        cache.look_ahead()
    dataset_number = next(_datasets)
    replicas = max((len(cache.devices) for cache in cached.values()), default=1)
    numbers = {name: _table.Group.open(table.group.path).find_table(name) for name, table in sharded.items()}

    def announce(index: tf.Tensor, element: Any) -> Any:
        keys_by_table = keys(element) if tiered or sharded else {}
        announced: list[tf.Operation] = []
        for name, lookups in _lookups(keys, element, replicas).items() if cached else ():
            if name in cached:
                announced += cached[name].announce(index, lookups)
        for name, unique_keys in keys_by_table.items():
            if name in tiered:
                table = tiered[name]
                shard = (table.nodes, table.node) if name in sharded else (1, 0)
                announced.append(
                    _ops.announce(table.path_tensor, table.uuid, unique_keys, dataset_number, index, n, *shard)
                )
            if name in sharded:
                group = sharded[name].group.path
                announced.append(_ops.pull_announce(group, numbers[name], unique_keys, dataset_number, index, n))
        with tf.control_dependencies(announced):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    ahead = dataset.enumerate().map(announce)
    if int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        # TensorFlow 2.15 numbers an endless dataset as if it ended.
        ahead = ahead.apply(tf.data.experimental.assert_cardinality(dataset.cardinality()))
    # A stage after this one would have a queue of its own, so that more batches are announced.
    return ahead.prefetch(queue_length)


def _lookups(keys: Any, element: Any, replicas: int) -> dict[str, list[list[tf.Tensor]]]:
    """Returns the lookups of all replicas for an element, by table: `TableKeys.lookups` of each replica's part."""
    all_lookups: dict[str, list[list[tf.Tensor]]] = {}
    for part in _parts(element, replicas) if replicas > 1 else [element]:
        for name, lookups in keys.lookups(part).items():
            all_lookups.setdefault(name, []).extend(lookups)
    return all_lookups


def _parts(element: Any, replicas: int) -> list[Any]:
    """Divides a global batch as tf.distribute does: parts of equal size, the first ones longer by one element."""
    leaves = tf.nest.flatten(element)
    size = leaves[0].shape[0]
    if size is None:
        n = tf.shape(leaves[0], tf.int64)[0] if not isinstance(leaves[0], tf.SparseTensor) else leaves[0].dense_shape[0]
        sizes = [-(-n // replicas)] * replicas  # as tf.distribute divides batches of unknown size
    else:
        sizes = [size // replicas + (r < size % replicas) for r in range(replicas)]
    ends = list(itertools.accumulate(sizes, initial=0))
    return [
        tf.nest.map_structure(lambda leaf, a=a, b=b: _rows(leaf, a, b), element) for a, b in itertools.pairwise(ends)
    ]


def _rows(leaf: Any, begin: Any, end: Any) -> Any:
    """Returns the elements [begin, end) of a batch."""
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[begin:end]
    start = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(leaf.dense_shape[1:])], 0)
    size = tf.concat([[tf.cast(end - begin, tf.int64)], leaf.dense_shape[1:]], 0)
    return tf.sparse.slice(leaf, start, size)


def _choose(dataset: tf.data.Dataset, keys: Any, tiered: dict[str, Any], cached: bool) -> int:
    """Chooses the number of batches: for tables on disk as many as fit twice, for a device cache 8, otherwise 2."""
    if not tiered:
        return _TO_DEVICE if cached else 2
    for element in dataset.take(1):
        leaves = tf.nest.flatten(element, expand_composites=True)
        size = sum(leaf.dtype.size * int(tf.size(leaf)) for leaf in leaves if leaf.dtype != tf.string)
        n = min(MAX_BATCHES, MAX_QUEUED_BYTES // (2 * max(size, 1)))
        for name, unique_keys in keys(element).items():
            if cached:
                n = min(n, MAX_BATCHES_TO_DEVICE // 2)
            if name in tiered:
                n = min(n, tiered[name].reader().stats()["rows_to_stage"] // (2 * max(int(tf.size(unique_keys)), 1)))
        return max(1, n)
    return 1
