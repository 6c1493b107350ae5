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
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops, job
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.layers import anchor, saving
from tf_sparse_ps.rings import node_exchange

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.layers.bags import Bags


class RowSource(abc.ABC):
    """Where the rows of one table come from."""

    def __init__(self, binding: TableBinding, weight: Any) -> None:
        """`binding`: of the table. `weight`: the table's anchor, at which its gradient arrives."""
        self.binding = binding
        self._weight = weight

    @property
    def path(self) -> tf.Tensor:
        """What names the table in a graph, a string scalar."""
        return anchor.path_of(self._weight)

    @property
    def carrier(self) -> tf.Tensor:
        """float32[0, dim]; the table's sparse gradient arrives at it."""
        return anchor.carrier_of(self._weight)

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


_PULLS = "_tsps_pulls"  # of a graph: how many it has of each name


def _wire(source: RowSource) -> str:
    placement = source.binding.config.placement
    assert isinstance(placement, Sharded)
    return placement.wire


def _pull(sources: Sequence[RowSource], keys: Sequence[tf.Tensor], wire: str) -> list[tf.Tensor]:
    this_job, first = job.current(), sources[0].binding
    name = _operation("tsps.pull." + ".".join(str(one.binding.ordinal) for one in sources))
    pull = _ops.Pull(name, first.nodes, first.node, wire)
    paths, uuids, _ = _named(sources)
    with tf.init_scope():
        exchange = node_exchange.of(this_job)
        exchange.join()
        group = exchange.cross_node_group()
    buffer, splits = pull.ask(keys, paths, uuids, this_job.timeout_s)
    if group is not None:
        asked, _ = group.alltoall(buffer, splits, f"{name}.keys")
        served, splits = pull.serve(asked, paths, uuids)
        buffer, _ = group.alltoall(served, splits, f"{name}.rows")
    return pull.take(buffer, keys, paths, uuids, [one.binding.config.dim for one in sources])


def _operation(name: str) -> str:
    """The name with a number: how many look-ups of these tables there are in the graph before. The same on all ranks.

    Several may be in flight beside each other.
    """
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    counts = getattr(graph, _PULLS, None) or {}
    counts[name] = counts.get(name, 0) + 1
    setattr(graph, _PULLS, counts)
    return f"{name}.{counts[name]}"


def of(binding: TableBinding, weight: Any) -> RowSource:
    """Where the rows of a table come from. `weight`: the table's anchor."""
    if binding.placement == "sharded" and not saving.traces_for_export():
        return ShardedTable(binding, weight)
    return SharedTable(binding, weight)


def look_up(sources: Sequence[RowSource], ids: Sequence[tf.Tensor], table_of: Sequence[int]) -> list[tf.Tensor]:
    """Rows of the ids of N features: N of float32[*ids.shape, dim].

    Args:
      sources: Of T tables.
      ids: N of int64, any shape.
      table_of: N positions in sources.
    """

    def plain(own: Sequence[RowSource], at: Sequence[int], of: Sequence[int]) -> list[tf.Tensor]:
        return _ops.lookup([ids[f] for f in at], *_named(own), of).rows

    def in_parts(own: Sequence[RowSource], at: Sequence[int], of: Sequence[int]) -> list[tf.Tensor]:
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
        return _ops.pooled_lookup(*bags_at(at), *_named(own), of, [combiners[f] for f in at]).pooled

    def in_parts(own: Sequence[RowSource], at: Sequence[int], of: Sequence[int]) -> list[tf.Tensor]:
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


def _named(sources: Sequence[RowSource]) -> tuple[list[tf.Tensor], list[str], list[tf.Tensor]]:
    """Paths, uuids and carriers, as the ops take them."""
    return [one.path for one in sources], [one.binding.uuid for one in sources], [one.carrier for one in sources]


# --- the ids that lookups ask for, without the lookups ---


@dataclasses.dataclass
class Recording:
    """What lookups asked for.

    Attributes:
      ids: The ids of each lookup, with their table, in the order of the lookups.
      stand_ins: What the lookups returned: zeros in place of rows.
    """

    ids: list[tuple[TableBinding, tf.Tensor]] = dataclasses.field(default_factory=list)
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
        for one, table, shape in zip(ids, table_of, shapes, strict=True):
            binding = sources[table].binding
            self.ids.append((binding, one))
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
