"""The batches of the equality tests, which the ranks and the reference share."""

from __future__ import annotations

import dataclasses

import numpy as np

STEPS = 200
RANKS = 4
DIMS = (4, 16, 5, 8)
KEYS = (30, 12, 60, 20)  # few, so that each key occurs on 1, 2, 3 and 4 ranks, and several times on one
BOUNDED = (False, True, False, False)
OFFSET = (-15, 0, 2**62, -(2**62))  # the first key: negative, bounded, or larger than a float or an int32 can hold
DENSE = ((3, 7), (11,), (150, 120))  # the last one is large enough to travel alone
RATES = {"sgd": 0.1, "adagrad": 0.3, "adam": 0.05}


@dataclasses.dataclass
class Batch:
    """The batch of a rank at a step.

    Attributes:
      ids: int64[n] for each table, with duplicates; empty if the batch does not touch the table.
      targets: float32[n, dim] for each table. The loss is half the squared distance of the rows to the targets.
      dense_targets: The targets of each dense weight, with the same loss.
    """

    ids: list[np.ndarray]
    targets: list[np.ndarray]
    dense_targets: list[np.ndarray]


def batch(step: int, rank: int) -> Batch:
    """Returns the batch of a rank at a step, 0 .. STEPS - 1."""
    random = np.random.default_rng([step, rank])
    ids, targets = [], []
    for table, (dim, keys) in enumerate(zip(DIMS, KEYS, strict=True)):
        n = int(random.integers(0, 20))
        # In one step of four, no rank touches the third table; in another, only ranks 1 and 3 do.
        if table == 2 and (step % 4 == 1 or (step % 4 == 2 and rank % 2 == 0)):
            n = 0
        # The distribution is skewed: all ranks have low keys, and few have high ones.
        picked = np.minimum(random.geometric(0.12, n) - 1, keys - 1)
        ids.append(picked.astype(np.int64) + OFFSET[table])
        targets.append(random.normal(size=(n, dim)).astype(np.float32))
    return Batch(ids, targets, [random.normal(size=shape).astype(np.float32) for shape in DENSE])


def all_keys(table: int) -> np.ndarray:
    """Returns int64[n]: every key that may occur."""
    return np.arange(KEYS[table], dtype=np.int64) + OFFSET[table]


def first_dense() -> list[np.ndarray]:
    """Returns the initial dense weights."""
    random = np.random.default_rng(99)
    return [random.normal(size=shape).astype(np.float32) for shape in DENSE]
