"""The data that ranks train on and that is written to tables, in plain NumPy: the same for ranks and model."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.oracle.options import Operation, Options, TableOptions

DENSE = 5  # inputs of the dense weights per sample
_POOL, _BATCH, _FIRST, _VALUES = range(4)  # the purpose of a generator


@dataclasses.dataclass(frozen=True)
class Batch:
    """One rank's batch.

    Attributes:
      ids: int64[batch, features, width] for each table.
      targets: float32[batch, features, width, dim] for each table; [batch, features, 1, dim] for a layer that reduces.
      dense: float32[batch, DENSE].
    """

    ids: list[np.ndarray]
    targets: list[np.ndarray]
    dense: np.ndarray


def width_of(options: Options, table: TableOptions) -> int:
    """Returns the ids per sample and feature. Bags have two ids, because a sum of two floats has one order."""
    return 2 if table.layer in ("sum", "mean") else options.width


def pool(options: Options, table: int) -> np.ndarray:
    """Returns the ids from which batches of a table are drawn, int64[keys], sorted."""
    table_options = options.tables[table]
    if table_options.bounded:
        return np.arange(table_options.keys, dtype=np.int64)
    random = np.random.default_rng([options.seed, _POOL, table])
    wide = random.integers(-(2**63), 2**63 - 1, table_options.keys - 3, dtype=np.int64, endpoint=True)
    edges = np.array([-1, 0, 2**63 - 1], np.int64)
    keys = np.unique(np.concatenate([wide, edges]))
    assert len(keys) == table_options.keys
    return keys


def batch(options: Options, number: int, rank: int) -> Batch:
    """Returns a rank's batch with this number, counted over the whole job."""
    random = np.random.default_rng([options.seed, _BATCH, number, rank])
    ids, targets = [], []
    for t, table in enumerate(options.tables):
        width = width_of(options, table)
        size = (options.batch, table.features, width)
        some = np.minimum(random.zipf(1.2, size) - 1, table.keys - 1) * 7919 % table.keys
        uniform = random.integers(0, table.keys, size)
        ids.append(pool(options, t)[np.where(random.random(size) < 0.5, some, uniform)])
        slots = 1 if table.layer in ("sum", "mean") else width
        targets.append(random.normal(size=(*size[:2], slots, table.dim)).astype(np.float32))
    return Batch(ids, targets, random.normal(size=(options.batch, DENSE)).astype(np.float32))


def most_keys(options: Options, table: int, batches: int) -> int:
    """Returns the most keys of a table that one of the first batches has, on all ranks together."""
    return max(
        len(np.unique(np.concatenate([batch(options, n, rank).ids[table].ravel() for rank in range(options.ranks)])))
        for n in range(batches)
    )


def kept(options: Options, table: int) -> list[int]:
    """Returns the keys that the eviction of a table keeps."""
    return [int(key) for key in pool(options, table)[: options.tables[table].kept]]


def asked(options: Options, operation: Operation, table: int) -> np.ndarray:
    """Returns the ids that an operation looks up, int64[n]. They are the same on all ranks."""
    random = np.random.default_rng([options.seed, _VALUES, int(operation.value), table])
    return random.choice(pool(options, table), 24)


def matrix(options: Options, table: int, number: int) -> np.ndarray:
    """Returns values for every key of a pool, float32[keys, dim]."""
    table_options = options.tables[table]
    random = np.random.default_rng([options.seed, _FIRST, number, table])
    return random.normal(size=(table_options.keys, table_options.dim)).astype(np.float32)


def edit(options: Options, number: int, table: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what is written to a table between two runs: positions to assign, their rows, positions to erase."""
    table_options = options.tables[table]
    random = np.random.default_rng([options.seed, _VALUES, number, table, 1])
    order = random.permutation(table_options.keys)
    assigned = order[: 1 + table_options.keys // 8]
    return (
        assigned,
        random.normal(size=(len(assigned), table_options.dim)).astype(np.float32),
        order[-(1 + table_options.keys // 8) :],
    )


def first_dense(options: Options) -> np.ndarray:
    """Returns the dense weights of a new job, float32[1, DENSE]."""
    return np.random.default_rng([options.seed, _FIRST]).normal(size=(1, DENSE)).astype(np.float32)


def table_seed(options: Options, table: int) -> int:
    """Returns the seed of a table's initial values and stochastic rounding."""
    return options.seed % 1000 * 10 + table
