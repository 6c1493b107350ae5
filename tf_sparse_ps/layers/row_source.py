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
from tf_sparse_ps.layers import saving, sharded
from tf_sparse_ps.reduction import node_exchange, row_pull

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.layers.bags import Bags
    from tf_sparse_ps.layers.table_asset import TableAsset


class RowSource(abc.ABC):
    """Where the rows of one table come from."""

    def __init__(self, binding: TableBinding, weight: Any) -> None:
        """`binding`: of the table. `weight`: the table's anchor, at which its gradient arrives."""
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
        """Rows of unique keys, of several tables of this class at once. No gradient passes through it.

        Args:
          sources: T, of this class.
          keys: T of int64[u_t].

        Returns:
          T of float32[u_t, dim].
        """


class SharedTable(RowSource):
    """A table in this machine's shared memory, or, in a SavedModel, in a file beside it.

    Lookups of such tables alone are one op, which dedupes and reads.
    """

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `RowSource.read`."""
        return _ops.read_rows(keys, *_named(sources))


class ShardedTable(RowSource):
    """A table whose rows are spread over the machines of the job. All ranks look up together, in the same order."""

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `RowSource.read`. Tables whose rows travel as the same type are one exchange."""
        rows: dict[int, tf.Tensor] = {}
        for wire in dict.fromkeys(_wire(one) for one in sources):
            at = [t for t, one in enumerate(sources) if _wire(one) == wire]
            found = _pull([sources[t] for t in at], [keys[t] for t in at], wire)
            rows |= dict(zip(at, found, strict=True))
        return [rows[t] for t in range(len(sources))]


class CachedTable(SharedTable):
    """A table of which some rows are on a device. In a SavedModel it is a `SharedTable`, as any."""

    @classmethod
    def read(cls, sources: Sequence[RowSource], keys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `RowSource.read`."""
        return [one._take([own])[1] for one, own in zip(sources, keys, strict=True) if isinstance(one, CachedTable)]

    @tf.autograph.experimental.do_not_convert
    def _take(self, ids: Sequence[tf.Tensor]) -> tuple[_ops.Unique, tf.Tensor]:
        found: tuple[_ops.Unique, tf.Tensor] = self.binding.cache.take(ids, self.path, job.current().step.read_value())
        return found

    def look_up(self, ids: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Rows of the ids of N features of this table, N of float32[*ids.shape, dim], on the device."""
        found, rows = self._take(ids)
        return device_store.gather(self.carrier, rows, found, self.binding.cache.device)

    def pool(self, bags: Sequence[Bags], combiners: Sequence[str]) -> list[tf.Tensor]:
        """Combined rows of the bags of N features of this table, N of float32[bags_f, dim], on the device."""
        rows = self.look_up([one.ids for one in bags])
        device = self.binding.cache.device
        return [
            device_bags.combine(found, one.splits, one.weights, combiner, device)
            for found, one, combiner in zip(rows, bags, combiners, strict=True)
        ]


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
    """Where the rows of a table come from. `weight`: the table's anchor."""
    if binding.placement == "sharded" and not saving.traces_for_export():
        return ShardedTable(binding, weight)
    if binding.cache is not None and not saving.traces_for_export():
        return CachedTable(binding, weight)
    return SharedTable(binding, weight)


def look_up(sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]) -> list[tf.Tensor]:
    """Rows of the ids of N features: N of float32[*ids.shape, dim].

    Args:
      sources: Of T tables.
      ids: N of int64, any shape.
      table_of: N positions in sources.
    """

    def plain(own: Sequence[RowSource], at: Sequence[int], of: Sequence[int]) -> list[tf.Tensor]:
        return _ops.lookup([ids[f] for f in at], *_named(own), of, in_step=_is_in_step(own)).rows

    def in_parts(own: Sequence[RowSource], at: Sequence[int], of: Sequence[int]) -> list[tf.Tensor]:
        if isinstance(own[0], CachedTable):
            return _by_table(own, of, lambda table, features: table.look_up([ids[at[f]] for f in features]))
        found = _ops.unique([ids[f] for f in at], of, len(own))
        return _ops.gather_rows(found, type(own[0]).read(own, found.keys), [one.carrier for one in own], of)

    recording = _recording.get()
    if recording is not None:
        return recording.take(sources, ids, table_of, [tf.shape(one, tf.int64) for one in ids])
    return _by_class(sources, table_of, plain, in_parts)


def pool(
    sources: Sequence[RowSource], bags: Sequence[Bags], table_of: Sequence[int], combiners: Sequence[str]
) -> list[tf.Tensor]:
    """Combined rows of the bags of N features: N of float32[bags_f, dim].

    Args:
      sources: Of T tables.
      bags: N.
      table_of: N positions in sources.
      combiners: N of "sum", "mean", "sqrtn".
    """

    def bags_at(at: Sequence[int]) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        own = [bags[f] for f in at]
        return [one.ids for one in own], [one.splits for one in own], [one.weights for one in own]

    def plain(own: Sequence[RowSource], at: Sequence[int], of: Sequence[int]) -> list[tf.Tensor]:
        own_combiners = [combiners[f] for f in at]
        return _ops.pooled_lookup(*bags_at(at), *_named(own), of, own_combiners, in_step=_is_in_step(own)).pooled

    def in_parts(own: Sequence[RowSource], at: Sequence[int], of: Sequence[int]) -> list[tf.Tensor]:
        if isinstance(own[0], CachedTable):

            def pool_one(table: CachedTable, features: Sequence[int]) -> list[tf.Tensor]:
                return table.pool([bags[at[f]] for f in features], [combiners[at[f]] for f in features])

            return _by_table(own, of, pool_one)
        ids, splits, weights = bags_at(at)
        found = _ops.unique(ids, of, len(own))
        rows, carriers = type(own[0]).read(own, found.keys), [one.carrier for one in own]
        return _ops.pool_rows(found, splits, weights, rows, carriers, of, [combiners[f] for f in at])

    recording = _recording.get()
    if recording is not None:
        ids = [one.ids for one in bags]
        return recording.take(sources, ids, table_of, [tf.shape(one.splits, tf.int64) - 1 for one in bags])
    return _by_class(sources, table_of, plain, in_parts)


# Looks up the features at some positions, in tables of one class; the last argument is each one's table among those.
_Part = Callable[[Sequence[RowSource], Sequence[int], Sequence[int]], list[tf.Tensor]]


def _by_class(sources: Sequence[RowSource], table_of: Sequence[int], plain: _Part, in_parts: _Part) -> list[tf.Tensor]:
    """One call for the tables of each class."""
    sharded.refuse_in_dataset([one.binding.config for one in sources])
    results: dict[int, tf.Tensor] = {}
    for cls in dict.fromkeys(type(one) for one in sources):
        tables = [t for t, one in enumerate(sources) if type(one) is cls]
        features = [f for f, table in enumerate(table_of) if table in tables]
        if not features:
            continue
        look = plain if cls is SharedTable else in_parts
        found = look([sources[t] for t in tables], features, [tables.index(table_of[f]) for f in features])
        results |= dict(zip(features, found, strict=True))
    return [results[f] for f in range(len(table_of))]


def _by_table(
    tables: Sequence[RowSource],
    table_of: Sequence[int],
    look: Callable[[CachedTable, Sequence[int]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """One call for the features of each table that has rows on a device."""
    results: dict[int, tf.Tensor] = {}
    for number in dict.fromkeys(table_of):
        table = tables[number]
        assert isinstance(table, CachedTable)
        features = [f for f, of in enumerate(table_of) if of == number]
        results |= dict(zip(features, look(table, features), strict=True))
    return [results[f] for f in range(len(table_of))]


@tf.autograph.experimental.do_not_convert
def _is_in_step(sources: Sequence[RowSource]) -> bool:
    """Whether a look-up belongs to a step of these tables that several ranks make: they then refuse it together."""
    return (
        _tensorflow.is_recording()
        and not saving.traces_for_export()
        and any(one._weight.trainable for one in sources)
        and job.current().size > 1
    )


def _named(sources: Sequence[RowSource]) -> tuple[list[tf.Tensor], list[str], list[tf.Tensor]]:
    """Paths, uuids and carriers, as the ops take them."""
    return [one.path for one in sources], [one.binding.uuid for one in sources], [one.carrier for one in sources]


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
