"""`RowSource`: reads the rows of one table for lookups. `look_up` and `pool` serve the tables of a layer together.

A lookup finds the unique keys of the ids, reads the rows of these keys, and gathers or pools the rows. For a table in
shared memory one op does all three. For other tables each of them is an op, and the source of the table reads the rows.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps import _ops, job
from tf_sparse_ps._compat import _keras, _tensorflow
from tf_sparse_ps.cache import device_bags, device_store
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.layers import saving, sharded
from tf_sparse_ps.reduction import node_exchange, row_pull, step_order

if TYPE_CHECKING:
    from tf_sparse_ps.cache.table_cache import TableCache
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.layers.bags import Bags
    from tf_sparse_ps.layers.plain_rows import PlainRows
    from tf_sparse_ps.layers.table_asset import TableAsset


class RowSource(abc.ABC):
    """Reads the rows of one table.

    A lookup of several features is one call per class of row source. This class dedupes the ids, reads the rows of the
    unique keys, and gathers or combines them.
    """

    def __init__(self, binding: TableBinding, weight: Any) -> None:
        """Makes the source of a table.

        Args:
          binding: The table.
          weight: The table's anchor, at which its gradient arrives.
        """
        self.binding = binding
        self._weight = weight

    @property
    def path(self) -> tf.Tensor:
        """The table's name in a graph, a string scalar. In a loaded SavedModel it names a file of the model."""
        if _keras.is_deferred(self._weight):
            path: tf.Tensor = self._weight.tsps_binding.path_tensor
            return path
        asset: TableAsset = _keras.tf_variable(self._weight).tsps_asset
        return asset.asset_path

    @property
    def carrier(self) -> tf.Tensor:
        """The anchor's value, float32[0, dim]. The table's sparse gradient arrives at it."""
        if _keras.is_deferred(self._weight):
            return tf.zeros([0, self._weight.tsps_binding.config.dim])
        carrier: tf.Tensor = _keras.tf_variable(self._weight).carrier()
        return carrier

    @classmethod
    @abc.abstractmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Reads rows of unique keys from several tables of this class at once. No gradient passes through it.

        Args:
          sources: T sources of this class.
          keys: T of int64[u_t].

        Returns:
          T of float32[u_t, dim].
        """

    @classmethod
    def look_up(
        cls, sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]
    ) -> list[tf.Tensor]:
        """Looks up ids as `look_up` of this module does, in tables of this class."""
        unique = _ops.unique(ids, table_of, len(sources))
        return _ops.gather_rows(unique, cls.read(sources, unique.keys), _carriers(sources), table_of, _uuids(sources))

    @classmethod
    def pool(
        cls, sources: Sequence[RowSource], bags: Sequence[Bags], table_of: Sequence[int], combiners: Sequence[str]
    ) -> list[tf.Tensor]:
        """Looks up bags as `pool` of this module does, in tables of this class."""
        ids, splits, weights = _flat(bags)
        unique = _ops.unique(ids, table_of, len(sources))
        rows = cls.read(sources, unique.keys)
        return _ops.pool_rows(unique, splits, weights, rows, _carriers(sources), table_of, combiners, _uuids(sources))


class SharedTable(RowSource):
    """A table in this machine's shared memory or, in a SavedModel, in a file of the model.

    A lookup of such tables is one op.
    """

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `RowSource.read`."""
        return _ops.read_rows(keys, *_named(sources), list(range(len(sources))))

    @classmethod
    def look_up(
        cls, sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]
    ) -> list[tf.Tensor]:
        """See `RowSource.look_up`."""
        if not _tensorflow.is_recording():
            return _ops.read_rows(ids, *_named(sources), table_of)
        return _ops.lookup(ids, *_named(sources), table_of, in_step=_is_in_step(sources)).rows

    @classmethod
    def pool(
        cls, sources: Sequence[RowSource], bags: Sequence[Bags], table_of: Sequence[int], combiners: Sequence[str]
    ) -> list[tf.Tensor]:
        """See `RowSource.pool`."""
        in_step = _is_in_step(sources)
        return _ops.pooled_lookup(*_flat(bags), *_named(sources), table_of, combiners, in_step=in_step).pooled


class ShardedTable(RowSource):
    """A table whose rows are spread over the machines of the job. All ranks look up together, in the same order."""

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `RowSource.read`. The tables whose rows are sent as the same type share one exchange."""
        rows: dict[int, tf.Tensor] = {}
        for wire in dict.fromkeys(_wire(source) for source in sources):
            at = [t for t, source in enumerate(sources) if _wire(source) == wire]
            pulled = _pull([sources[t] for t in at], [keys[t] for t in at], wire)
            rows |= dict(zip(at, pulled, strict=True))
        return [rows[t] for t in range(len(sources))]


class CachedTable(RowSource):
    """A table with some rows on a device. In a SavedModel it is a `SharedTable`, like any other table."""

    @property
    def _cache(self) -> TableCache:
        cache = cache_of(self.binding)
        assert cache is not None
        return cache

    @tf.autograph.experimental.do_not_convert
    def _take(self, ids: Sequence[tf.Tensor]) -> tuple[_ops.Unique, tf.Tensor]:
        return self._cache.take(ids, self.path, job.current().step.read_value())

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `RowSource.read`."""
        return [source._take([table_keys])[1] for source, table_keys in zip(_cached(sources), keys, strict=True)]

    @classmethod
    def look_up(
        cls, sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]
    ) -> list[tf.Tensor]:
        """See `RowSource.look_up`. The rows are on the table's device."""
        results: dict[int, tf.Tensor] = {}
        for t, source in enumerate(_cached(sources)):
            features = [f for f, table in enumerate(table_of) if table == t]
            unique, unique_rows = source._take([ids[f] for f in features])
            rows = device_store.gather(source.carrier, unique_rows, unique, source._cache.device)
            results |= dict(zip(features, rows, strict=True))
        return [results[f] for f in range(len(table_of))]

    @classmethod
    def pool(
        cls, sources: Sequence[RowSource], bags: Sequence[Bags], table_of: Sequence[int], combiners: Sequence[str]
    ) -> list[tf.Tensor]:
        """See `RowSource.pool`. The rows are combined on the table's device."""
        rows = cls.look_up(sources, [bag.ids for bag in bags], table_of)
        devices = [source._cache.device for source in _cached(sources)]
        return [
            device_bags.combine(rows[f], bag.splits, bag.weights, combiners[f], devices[table_of[f]])
            for f, bag in enumerate(bags)
        ]


class PlainTable(RowSource):
    """A table in a SavedModel without custom ops."""

    @property
    def _rows(self) -> PlainRows:
        rows = saving.plain_rows(self.binding)
        assert rows is not None
        return rows

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `RowSource.read`."""
        return cls.look_up(sources, keys, list(range(len(sources))))

    @classmethod
    def look_up(
        cls, sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]
    ) -> list[tf.Tensor]:
        """See `RowSource.look_up`."""
        plain = [source._rows for source in sources if isinstance(source, PlainTable)]
        return [plain[table].look_up(feature) for feature, table in zip(ids, table_of, strict=True)]

    @classmethod
    def pool(
        cls, sources: Sequence[RowSource], bags: Sequence[Bags], table_of: Sequence[int], combiners: Sequence[str]
    ) -> list[tf.Tensor]:
        """See `RowSource.pool`."""
        rows = cls.look_up(sources, [bag.ids for bag in bags], table_of)
        return [
            device_bags.combine(rows[f], bag.splits, bag.weights, combiners[f], "/CPU:0") for f, bag in enumerate(bags)
        ]


def _cached(sources: Sequence[RowSource]) -> list[CachedTable]:
    return [source for source in sources if isinstance(source, CachedTable)]


def _carriers(sources: Sequence[RowSource]) -> list[tf.Tensor]:
    return [source.carrier for source in sources]


def _uuids(sources: Sequence[RowSource]) -> list[str]:
    return [source.binding.uuid for source in sources]


def _named(sources: Sequence[RowSource]) -> tuple[list[tf.Tensor], list[str], list[tf.Tensor]]:
    """Returns the paths, uuids and carriers of tables, as the ops take them."""
    return [source.path for source in sources], _uuids(sources), _carriers(sources)


def _flat(bags: Sequence[Bags]) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    """Returns the ids, splits and weights of bags, as the ops take them."""
    return [bag.ids for bag in bags], [bag.splits for bag in bags], [bag.weights for bag in bags]


@tf.autograph.experimental.do_not_convert
def _is_in_step(sources: Sequence[RowSource]) -> bool:
    """Whether the lookup belongs to a training step of several ranks, which refuse the step together if it fails."""
    return (
        _tensorflow.is_recording()
        and not saving.traces_for_export()
        and any(source._weight.trainable for source in sources)
        and job.current().size > 1
    )


# A process makes one pull after another, in the order of the program (`NodeExchange.pulls`), because one exchange of
# the node's ranks serves all pulls. The collectives between nodes have the tables in their names. If the programs of
# two ranks differ, both wait until the liveness check names them, and no rank receives rows of another table.
_PULL = "tsps.pull"


def _wire(source: RowSource) -> str:
    placement = source.binding.config.placement
    assert isinstance(placement, Sharded)
    return placement.wire


@tf.autograph.experimental.do_not_convert
def _pull(sources: Sequence[RowSource], keys: Sequence[tf.Tensor], wire: str) -> list[tf.Tensor]:
    tables = [source.binding for source in sources]
    pull = _Pull(
        f"{_PULL}.{'.'.join(str(table.ordinal) for table in tables)}",
        _ops.Pull(_PULL, tables[0].nodes, tables[0].node, wire),
        tuple(table.uuid for table in tables),
        tuple(table.config.dim for table in tables),
    )
    paths = [source.path for source in sources]
    if tf.executing_eagerly():
        rows: list[tf.Tensor] = _eager_pull(pull)(list(keys), paths)
        return rows
    return pull.rows(keys, paths)


@dataclasses.dataclass(frozen=True)
class _Pull:
    """Pulls rows of sharded tables from their owners. It holds no reference to the tables, so that they can be freed.

    Attributes:
      name: The name of the collectives between nodes, the same on all ranks.
      ops: The ops of a pull.
      uuids, dims: The uuids and row widths of the tables.
    """

    name: str
    ops: _ops.Pull
    uuids: tuple[str, ...]
    dims: tuple[int, ...]

    def rows(self, keys: Sequence[tf.Tensor], paths: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the rows of unique keys. Runs in a graph; all ranks call it."""
        this_job = job.current()
        with tf.init_scope():
            sharded.prepare(this_job)
            exchange = node_exchange.of(this_job)
            group, order = exchange.cross_node_group(), exchange.pulls
        with step_order.between_data():
            # These two reads place the pull after the previous pull and after the previous step, also in functions and
            # loops, where TensorFlow orders ops by their variables.
            with tf.control_dependencies([this_job.step.read_value()]):
                pull_number = order.read_value()
            # The marks let the liveness check report who waits for which ranks of this node, as for collectives.
            wait_name = f"{self.name}.ranks"
            marked_keys = [_ops.mark(keys[0], wait_name, "begin", pull_number), *keys[1:]]
            buffer, splits = self.ops.ask(marked_keys, paths, self.uuids, this_job.timeout_s)
            buffer = _ops.mark(buffer, wait_name, "end", pull_number)
            tables = paths, self.uuids, self.dims
            rows = row_pull.rows_for(self.ops, (buffer, splits), keys, tables, group, self.name)
            with tf.control_dependencies(rows):
                order.assign_add(1)
        return rows


@functools.lru_cache(maxsize=256)
def _eager_pull(pull: _Pull) -> Any:
    """Returns `pull.rows` as a tf.function for eager calls, because only graphs record who waits."""
    signature = [tf.TensorSpec([None], tf.int64) for _ in pull.dims], [tf.TensorSpec([], tf.string) for _ in pull.dims]
    # TensorFlow counts traces by code object. With the method itself, it would warn of retracing.
    return tf.function(functools.partial(pull.rows), input_signature=signature, autograph=False)


def of(binding: TableBinding, weight: Any) -> RowSource:
    """Returns the row source of a table. `weight`: the table's anchor."""
    if saving.plain_rows(binding) is not None:
        return PlainTable(binding, weight)
    if binding.placement == "sharded" and not saving.traces_for_export():
        return ShardedTable(binding, weight)
    if cache_of(binding) is not None and not saving.traces_for_export():
        return CachedTable(binding, weight)
    return SharedTable(binding, weight)


def look_up(sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]) -> list[tf.Tensor]:
    """Looks up the ids of N features.

    Args:
      sources: The sources of T tables.
      ids: N of int64, any shape.
      table_of: For each feature, the position of its table in `sources`.

    Returns:
      N of float32[*ids.shape, dim].
    """
    recording = _recording.get()  # no assignment expression: AutoGraph cannot convert those
    if recording is not None:
        return recording.take(sources, ids, table_of, [tf.shape(feature, tf.int64) for feature in ids])
    rows: dict[int, tf.Tensor] = {}
    for part in _parts(sources, table_of):
        looked_up = part.source_class.look_up(part.sources, [ids[f] for f in part.features], part.table_of)
        rows |= dict(zip(part.features, looked_up, strict=True))
    return [rows[f] for f in range(len(table_of))]


def pool(
    sources: Sequence[RowSource], bags: Sequence[Bags], table_of: Sequence[int], combiners: Sequence[str]
) -> list[tf.Tensor]:
    """Looks up and combines the bags of N features.

    Args:
      sources: The sources of T tables.
      bags: The bags of each feature.
      table_of: For each feature, the position of its table in `sources`.
      combiners: N of "sum", "mean", "sqrtn".

    Returns:
      N of float32[bags_f, dim].
    """
    recording = _recording.get()  # no assignment expression: AutoGraph cannot convert those
    if recording is not None:
        shapes = [tf.shape(bag.splits, tf.int64) - 1 for bag in bags]
        return recording.take(sources, [bag.ids for bag in bags], table_of, shapes)
    pooled: dict[int, tf.Tensor] = {}
    for part in _parts(sources, table_of):
        part_combiners = [combiners[f] for f in part.features]
        rows = part.source_class.pool(part.sources, [bags[f] for f in part.features], part.table_of, part_combiners)
        pooled |= dict(zip(part.features, rows, strict=True))
    return [pooled[f] for f in range(len(table_of))]


class _Part(NamedTuple):
    """The tables of one class of row source.

    Attributes:
      source_class: The class.
      sources: The sources of these tables.
      features: The positions of the features that look up in these tables.
      table_of: For each of these features, the position of its table in `sources`.
    """

    source_class: type[RowSource]
    sources: list[RowSource]
    features: list[int]
    table_of: list[int]


def _parts(sources: Sequence[RowSource], table_of: Sequence[int]) -> list[_Part]:
    """Divides tables with features by the class of their row source. One call looks up in the tables of a class."""
    sharded.refuse_in_dataset([source.binding.config for source in sources])
    parts = []
    for source_class in dict.fromkeys(type(source) for source in sources):
        tables = [t for t, source in enumerate(sources) if type(source) is source_class]
        features = [f for f, table in enumerate(table_of) if table in tables]
        if features:
            positions = [tables.index(table_of[f]) for f in features]
            parts.append(_Part(source_class, [sources[t] for t in tables], features, positions))
    return parts


# --- the ids of lookups, recorded instead of looked up ---


@dataclasses.dataclass
class Recording:
    """The ids of lookups.

    Attributes:
      ids: The ids of each feature, with its table, in the order of the lookups.
      calls: The number of the lookup of each feature.
      stand_ins: The results of the lookups: zeros in place of rows.
    """

    ids: list[tuple[TableBinding, tf.Tensor]] = dataclasses.field(default_factory=list)
    calls: list[int] = dataclasses.field(default_factory=list)
    stand_ins: list[tf.Tensor] = dataclasses.field(default_factory=list)

    def take(
        self,
        sources: Sequence[RowSource],
        ids: Sequence[tf.Tensor],
        table_of: Sequence[int],
        shapes: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Records the ids of N features. Returns zeros, float32[*shape, dim], for each of them."""
        rows = []
        call = self.calls[-1] + 1 if self.calls else 0
        for feature, table, shape in zip(ids, table_of, shapes, strict=True):
            binding = sources[table].binding
            self.ids.append((binding, feature))
            self.calls.append(call)
            rows.append(tf.zeros(tf.concat([shape, [binding.config.dim]], 0)))
        self.stand_ins += rows
        return rows


_recording: contextvars.ContextVar[Recording | None] = contextvars.ContextVar("tf_sparse_ps_recording", default=None)


@contextlib.contextmanager
def record() -> Iterator[Recording]:
    """Records the lookups of this thread within its `with` block. They read no table and return zeros."""
    recording = Recording()
    token = _recording.set(recording)
    try:
        yield recording
    finally:
        _recording.reset(token)
