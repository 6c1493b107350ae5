"""The batches of every rank of the tests of weights, at every step, for the ranks and for the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

STEPS = 24
TABLE_ONE_RANK_LACKS, RANK_WITHOUT_IT = 1, 2
OUT_OF_SAMPLES, NOBODY = (3, 15), 7  # rank 3 has no samples from step 15 on, and no rank has any at step 7

# The model for fit has a table, whose rows are flattened, and one dense layer.
FIELDS, DIM, KEYS, RATE, EPOCHS = 2, 3, 12, 0.2, 2
BATCHES, BATCH_SIZES = (5, 2, 3, 1), (4, 3, 6, 2)


def samples(step: int, rank: int) -> int:
    """Returns the size of a rank's batch, which is its weight. Rank 1 has an empty batch in one step of three."""
    if step == NOBODY or (rank == 1 and step % 3 == 1) or (rank == OUT_OF_SAMPLES[0] and step >= OUT_OF_SAMPLES[1]):
        return 0
    return 1 + (5 * step + 3 * rank) % 7


def first_big() -> np.ndarray:
    """Returns float32[40, 5]: a replicated weight that is trained by rows."""
    return np.random.default_rng(98).normal(size=(40, 5)).astype(np.float32)


def big_ids(ids: Any) -> Any:
    """Returns the rows of that weight that a batch reads, from the batch's ids of table 1."""
    return ids + 7


def fit_data(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs int64[n, FIELDS] and targets float32[n, 1], in whole batches."""
    random, n = np.random.default_rng(rank), BATCHES[rank] * BATCH_SIZES[rank]
    return random.integers(0, KEYS, (n, FIELDS)), random.normal(size=(n, 1)).astype(np.float32)


def first_kernel() -> np.ndarray:
    """Returns float32[FIELDS * DIM, 1]: the kernel of the dense layer."""
    return np.random.default_rng(97).normal(size=(FIELDS * DIM, 1)).astype(np.float32)
