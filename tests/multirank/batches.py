"""The work of the equality test, for the ranks and for the reference: what every rank sees at every step."""

from __future__ import annotations

import dataclasses

import numpy as np

STEPS = 200
RANKS = 4
DIMS = (4, 16, 5, 8)
KEYS = (30, 12, 60, 20)  # few, so that every key occurs in 1, 2, 3 and 4 ranks and several times within one
BOUNDED = (False, True, False, False)
OFFSET = (-15, 0, 2**62, -(2**62))  # of the first key: negative, bounded, and beyond what a float or an int32 holds
DENSE = ((3, 7), (11,), (150, 120))  # the last one is big enough to travel by itself
RATES = {"sgd": 0.1, "adagrad": 0.3, "adam": 0.05}


@dataclasses.dataclass
class Batch:
    """What a rank sees at a step.

    Attributes:
      ids: Per table int64[n], with duplicates; empty when the table is not touched.
      targets: Per table float32[n, dim]. The loss is half the squared distance of the rows to them.
      dense_targets: Per dense weight, likewise.
    """

    ids: list[np.ndarray]
    targets: list[np.ndarray]
    dense_targets: list[np.ndarray]


def batch(step: int, rank: int) -> Batch:
    """The batch of a rank at a step, 0 .. STEPS - 1."""
    random = np.random.default_rng([step, rank])
    ids, targets = [], []
    for table, (dim, keys) in enumerate(zip(DIMS, KEYS, strict=True)):
        n = int(random.integers(0, 20))
        # The third table: by nobody in one step of four, by ranks 1 and 3 only in another.
        if table == 2 and (step % 4 == 1 or (step % 4 == 2 and rank % 2 == 0)):
            n = 0
        # Skewed: low keys by all ranks, high ones by few.
        picked = np.minimum(random.geometric(0.12, n) - 1, keys - 1)
        ids.append(picked.astype(np.int64) + OFFSET[table])
        targets.append(random.normal(size=(n, dim)).astype(np.float32))
    return Batch(ids, targets, [random.normal(size=shape).astype(np.float32) for shape in DENSE])


def all_keys(table: int) -> np.ndarray:
    """int64[n]: every key that may occur."""
    return np.arange(KEYS[table], dtype=np.int64) + OFFSET[table]


def first_dense() -> list[np.ndarray]:
    """The dense weights to start from."""
    random = np.random.default_rng(99)
    return [random.normal(size=shape).astype(np.float32) for shape in DENSE]
