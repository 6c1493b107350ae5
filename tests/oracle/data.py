"""What ranks train on, and what is written to tables: plain NumPy, made alike by the ranks and by the model."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.oracle.options import Operation, Options, TableOptions

DENSE = 5  # numbers of a sample that the dense weights see
_POOL, _BATCH, _FIRST, _VALUES = range(4)  # what a generator is for


@dataclasses.dataclass(frozen=True)
class Batch:
    """One rank's batch.

    Attributes:
      ids: Of each table int64[batch, features, width].
      targets: Of each table float32[batch, features, width, dim]; of a layer that reduces, [batch, features, 1, dim].
      dense: float32[batch, DENSE].
    """

    ids: list[np.ndarray]
    targets: list[np.ndarray]
    dense: np.ndarray


def width_of(options: Options, table: TableOptions) -> int:
    """Ids per sample and feature. Bags have two ids: a sum of two floats does not depend on their order."""
    return 2 if table.layer in ("sum", "mean") else options.width


def pool(options: Options, table: int) -> np.ndarray:
    """The ids that batches of a table are drawn from, int64[keys], sorted."""
    one = options.tables[table]
    if one.bounded:
        return np.arange(one.keys, dtype=np.int64)
    random = np.random.default_rng([options.seed, _POOL, table])
    wide = random.integers(-(2**63), 2**63 - 1, one.keys - 3, dtype=np.int64, endpoint=True)
    edges = np.array([-1, 0, 2**63 - 1], np.int64)
    found = np.unique(np.concatenate([wide, edges]))
    assert len(found) == one.keys
    return found


def batch(options: Options, number: int, rank: int) -> Batch:
    """A rank's batch with this number, counted over the whole job."""
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


def asked(options: Options, operation: Operation, table: int) -> np.ndarray:
    """Ids that an operation looks up, int64[n]; the same on all ranks."""
    random = np.random.default_rng([options.seed, _VALUES, int(operation.value), table])
    return random.choice(pool(options, table), 24)


def matrix(options: Options, table: int, number: int) -> np.ndarray:
    """Values for every key of a pool, float32[keys, dim]."""
    one = options.tables[table]
    random = np.random.default_rng([options.seed, _FIRST, number, table])
    return random.normal(size=(one.keys, one.dim)).astype(np.float32)


def edit(options: Options, number: int, table: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is written to a table between two runs: positions in the pool to assign, their rows, positions to erase."""
    one = options.tables[table]
    random = np.random.default_rng([options.seed, _VALUES, number, table, 1])
    order = random.permutation(one.keys)
    assigned = order[: 1 + one.keys // 8]
    return assigned, random.normal(size=(len(assigned), one.dim)).astype(np.float32), order[-(1 + one.keys // 8) :]


def first_dense(options: Options) -> np.ndarray:
    """The dense weights of a new job, float32[1, DENSE]."""
    return np.random.default_rng([options.seed, _FIRST]).normal(size=(1, DENSE)).astype(np.float32)


def table_seed(options: Options, table: int) -> int:
    """The seed of a table's initial values and stochastic rounding."""
    return options.seed % 1000 * 10 + table
