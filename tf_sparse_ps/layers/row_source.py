"""Where the rows of a layer's tables come from: one `RowSource` per table, and the lookups that ask it.

A lookup has two parts: the unique keys of a call's ids, and the rows of those keys, gathered or pooled. Rows of plain
tables come from shared memory, where one op does both. Rows from anywhere else are read by their source, between the
two.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops, job
from tf_sparse_ps._compat import _keras, _tensorflow
from tf_sparse_ps.cache import device_bags, device_store
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.job.cached_binding import cache_of
from tf_sparse_ps.layers import saving, sharded
from tf_sparse_ps.reduction import node_exchange, row_pull

if TYPE_CHECKING:
    from tf_sparse_ps.cache.table_cache import TableCache
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.layers.bags import Bags
    from tf_sparse_ps.layers.table_asset import TableAsset


class RowSource(abc.ABC):
    """Where the rows of one table come from.

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
        """The table's name in a graph: a string scalar, which travels with a SavedModel."""
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
        """`look_up` of this module, for tables of this class."""
        unique = _ops.unique(ids, table_of, len(sources))
        return _ops.gather_rows(unique, cls.read(sources, unique.keys), _carriers(sources), table_of)

    @classmethod
    def pool(
        cls, sources: Sequence[RowSource], bags: Sequence[Bags], table_of: Sequence[int], combiners: Sequence[str]
    ) -> list[tf.Tensor]:
        """`pool` of this module, for tables of this class."""
        ids, splits, weights = _flat(bags)
        unique = _ops.unique(ids, table_of, len(sources))
        rows = cls.read(sources, unique.keys)
        return _ops.pool_rows(unique, splits, weights, rows, _carriers(sources), table_of, combiners)


class SharedTable(RowSource):
    """A table in this machine's shared memory, or, in a SavedModel, in a file of the model.

    Lookups of such tables alone are one op, which dedupes and reads.
    """

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `RowSource.read`."""
        return _ops.read_rows(keys, *_named(sources))

    @classmethod
    def look_up(
        cls, sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]
    ) -> list[tf.Tensor]:
        """See `RowSource.look_up`."""
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
        """See `RowSource.read`. Tables whose rows travel as the same type are one exchange."""
        rows: dict[int, tf.Tensor] = {}
        for wire in dict.fromkeys(_wire(source) for source in sources):
            at = [t for t, source in enumerate(sources) if _wire(source) == wire]
            pulled = _pull([sources[t] for t in at], [keys[t] for t in at], wire)
            rows |= dict(zip(at, pulled, strict=True))
        return [rows[t] for t in range(len(sources))]


class CachedTable(RowSource):
    """A table with some rows on a device. In a SavedModel it is a `SharedTable`, as any other."""

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
        return [source._take([own])[1] for source, own in zip(_cached(sources), keys, strict=True)]

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


def _cached(sources: Sequence[RowSource]) -> list[CachedTable]:
    return [source for source in sources if isinstance(source, CachedTable)]


def _carriers(sources: Sequence[RowSource]) -> list[tf.Tensor]:
    return [source.carrier for source in sources]


def _named(sources: Sequence[RowSource]) -> tuple[list[tf.Tensor], list[str], list[tf.Tensor]]:
    """Returns paths, uuids and carriers, as the ops take them."""
    return [source.path for source in sources], [source.binding.uuid for source in sources], _carriers(sources)


def _flat(bags: Sequence[Bags]) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    """Returns ids, splits and weights, as the ops take them."""
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


# All pulls of a process are one after another, in the order of the program (`NodeExchange.pulls`): one exchange of the
# node's ranks serves them all. What goes between nodes has the tables in its name, so that ranks whose programs differ
# wait for each other, and are named, and none gets another table's rows.
_PULL = "tsps.pull"


def _wire(source: RowSource) -> str:
    placement = source.binding.config.placement
    assert isinstance(placement, Sharded)
    return placement.wire


@tf.autograph.experimental.do_not_convert
def _pull(sources: Sequence[RowSource], keys: Sequence[tf.Tensor], wire: str) -> list[tf.Tensor]:
    tables = [one.binding for one in sources]
    pull = _Pull(
        f"{_PULL}.{'.'.join(str(one.ordinal) for one in tables)}",
        _ops.Pull(_PULL, tables[0].nodes, tables[0].node, wire),
        tuple(one.uuid for one in tables),
        tuple(one.config.dim for one in tables),
    )
    paths = [one.path for one in sources]
    if tf.executing_eagerly():
        found: list[tf.Tensor] = _eager_pull(pull)(list(keys), paths)
        return found
    return pull.rows(keys, paths)


@dataclasses.dataclass(frozen=True)
class _Pull:
    """What looks rows of some tables up, but the tables, which it does not hold.

    Attributes:
      name: Of what goes between nodes, the same on all ranks.
      ops: The parts of a pull.
      uuids, dims: Of the tables.
    """

    name: str
    ops: _ops.Pull
    uuids: tuple[str, ...]
    dims: tuple[int, ...]

    def rows(self, keys: Sequence[tf.Tensor], paths: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Rows of unique keys. In a graph, on all ranks."""
        this_job = job.current()
        with tf.init_scope():
            sharded.prepare(this_job)
            exchange = node_exchange.of(this_job)
            group, order = exchange.cross_node_group(), exchange.pulls
        # Reading both puts a pull after the one before it, and after the step before it, in functions and loops too,
        # where TensorFlow orders by variable.
        with tf.control_dependencies([this_job.step.read_value()]):
            begun = order.read_value()
        # Who waits for ranks of this node, and for whom, is found out as for collectives.
        waits = f"{self.name}.ranks"
        asked_for = [_ops.mark(keys[0], waits, "begin", begun), *keys[1:]]
        buffer, splits = self.ops.ask(asked_for, paths, self.uuids, this_job.timeout_s)
        buffer = _ops.mark(buffer, waits, "end", begun)
        tables = paths, self.uuids, self.dims
        rows = row_pull.rows_for(self.ops, (buffer, splits), keys, tables, group, self.name)
        with tf.control_dependencies(rows):
            order.assign_add(1)
        return rows


@functools.lru_cache(maxsize=256)
def _eager_pull(pull: _Pull) -> Any:
    """`pull.rows` as a function, for eager calls: in graphs alone is seen who waits."""
    signature = [tf.TensorSpec([None], tf.int64) for _ in pull.dims], [tf.TensorSpec([], tf.string) for _ in pull.dims]
    # Not the method itself: TensorFlow counts traces by code object and would warn of retracing.
    return tf.function(functools.partial(pull.rows), input_signature=signature, autograph=False)


def of(binding: TableBinding, weight: Any) -> RowSource:
    """Returns the row source of a table. `weight`: the table's anchor."""
    if binding.placement == "sharded" and not saving.traces_for_export():
        return ShardedTable(binding, weight)
    if cache_of(binding) is not None and not saving.traces_for_export():
        return CachedTable(binding, weight)
    return SharedTable(binding, weight)


def look_up(sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]) -> list[tf.Tensor]:
    """Looks up the ids of N features: N of float32[*ids.shape, dim].

    Args:
      sources: The sources of T tables.
      ids: N of int64, any shape.
      table_of: For each feature, the position of its table in `sources`.
    """
    if (recording := _recording.get()) is not None:
        return recording.take(sources, ids, table_of, [tf.shape(feature, tf.int64) for feature in ids])
    return _by_class(sources, table_of, lambda cls, own, at, of: cls.look_up(own, [ids[f] for f in at], of))


def pool(
    sources: Sequence[RowSource], bags: Sequence[Bags], table_of: Sequence[int], combiners: Sequence[str]
) -> list[tf.Tensor]:
    """Looks up and combines the bags of N features: N of float32[bags_f, dim].

    Args:
      sources: The sources of T tables.
      bags: N.
      table_of: For each feature, the position of its table in `sources`.
      combiners: N of "sum", "mean", "sqrtn".
    """
    if (recording := _recording.get()) is not None:
        shapes = [tf.shape(bag.splits, tf.int64) - 1 for bag in bags]
        return recording.take(sources, [bag.ids for bag in bags], table_of, shapes)
    return _by_class(
        sources,
        table_of,
        lambda cls, own, at, of: cls.pool(own, [bags[f] for f in at], of, [combiners[f] for f in at]),
    )


# The arguments: a class, sources of that class, the positions of their features, and each feature's table.
_Call = Callable[[type[RowSource], Sequence[RowSource], Sequence[int], Sequence[int]], list[tf.Tensor]]


def _by_class(sources: Sequence[RowSource], table_of: Sequence[int], call: _Call) -> list[tf.Tensor]:
    """Makes one call for the tables of each class of row source."""
    sharded.refuse_in_dataset([source.binding.config for source in sources])
    results: dict[int, tf.Tensor] = {}
    for cls in dict.fromkeys(type(source) for source in sources):
        tables = [t for t, source in enumerate(sources) if type(source) is cls]
        features = [f for f, table in enumerate(table_of) if table in tables]
        if features:
            rows = call(cls, [sources[t] for t in tables], features, [tables.index(table_of[f]) for f in features])
            results |= dict(zip(features, rows, strict=True))
    return [results[f] for f in range(len(table_of))]


# --- the ids that lookups ask for, without the lookups ---


@dataclasses.dataclass
class Recording:
    """What lookups asked for.

    Attributes:
      ids: The ids of each feature, with its table, in the order of the lookups.
      calls: Of each, the number of the lookup.
      stand_ins: What the lookups returned: zeros in place of rows.
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
        """Notes the ids of N features; returns zeros float32[*shape, dim] for each."""
        rows = []
        call = self.calls[-1] + 1 if self.calls else 0
        for one, table, shape in zip(ids, table_of, shapes, strict=True):
            binding = sources[table].binding
            self.ids.append((binding, one))
            self.calls.append(call)
            rows.append(tf.zeros(tf.concat([shape, [binding.config.dim]], 0)))
        self.stand_ins += rows
        return rows


_recording: contextvars.ContextVar[Recording | None] = contextvars.ContextVar("tf_sparse_ps_recording", default=None)


@contextlib.contextmanager
def record() -> Iterator[Recording]:
    """Within it this thread's lookups touch no table: their ids are noted, and they return zeros."""
    recording = Recording()
    token = _recording.set(recording)
    try:
        yield recording
    finally:
        _recording.reset(token)
