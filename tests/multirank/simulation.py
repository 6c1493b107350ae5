"""The reference's results for the batches of these tests, and the distance of other results from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import batches
import numpy as np
from mode_a import Simulation, SparseBatch

Results = dict[str, list[dict[str, np.ndarray]]]
TOLERANCE = {"sgd": 2e-6, "adagrad": 2e-6, "adam": 2e-5}
# Where the last bit of a sum differs from the reference's, a narrow wire may round it in the other direction, by up to
# 2^-7 of a gradient for bfloat16. This is rare: nearly all elements are as close as with float32.
NARROW_WIRE, RARE = 5e-3, 0.02


def results_in(folder: Path, ranks: int) -> Results:
    """Returns the results of the programs: by name, one dict per process."""
    names = {path.name.rsplit("-", 1)[0] for path in folder.glob("*.npz")}
    return {name: [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(ranks)] for name in names}


def simulate(
    kind: str,
    reduction: str,
    steps: int,
    start: dict[str, np.ndarray],
    senders: Sequence[Sequence[int]],
    wire: str = "float32",
) -> Simulation:
    """Returns the reference after some steps.

    Args:
      kind: The kind of the optimizer.
      reduction: The reduction of sparse gradients.
      steps: The number of steps.
      start: Results of a program, from which the tables' initial rows are taken.
      senders: Groups of ranks whose gradients are added up before they travel.
      wire: The dtype to which the sums are rounded then.
    """
    tables = []
    for t in range(len(batches.DIMS)):
        tables.append(dict(zip(batches.all_keys(t).tolist(), start[f"first{t}"], strict=True)))
    job = Simulation(batches.first_dense(), tables, kind, reduction, batches.RATES[kind], senders, wire)
    for step in range(steps):
        dense, sparse = [], []
        for rank in range(sum(map(len, senders))):
            rank_batch = batches.batch(step, rank)
            dense.append([w - target for w, target in zip(job.dense, rank_batch.dense_targets, strict=True)])
            sparse.append(
                [
                    SparseBatch(ids, job.rows(t, ids) - rank_batch.targets[t]) if len(ids) else None
                    for t, ids in enumerate(rank_batch.ids)
                ]
            )
        job.train(dense, sparse)
    return job


def table_errors(job: Simulation, result: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the error of every element of the tables, relative to the largest weight of its table."""
    errors = []
    for t in range(len(batches.DIMS)):
        expected = job.rows(t, batches.all_keys(t))
        errors.append(np.abs(result[f"last{t}"] - expected).ravel() / np.abs(expected).max())
    return np.concatenate(errors)


def largest_error(job: Simulation, result: dict[str, np.ndarray]) -> float:
    """Returns the largest error of tables and dense weights, relative to the largest weight of each."""
    dense = [np.abs(result[f"dense{i}"] - weight).max() / np.abs(weight).max() for i, weight in enumerate(job.dense)]
    return float(max(table_errors(job, result).max(), *dense))
