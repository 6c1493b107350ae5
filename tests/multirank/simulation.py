"""What the reference makes of these tests' batches, and how far results are from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import batches
import numpy as np
from mode_a import Simulation, SparseBatch

Results = dict[str, list[dict[str, np.ndarray]]]
TOLERANCE = {"sgd": 2e-6, "adagrad": 2e-6, "adam": 2e-5}
# Where a sum's last bit differs from the reference's, a narrow wire may round it the other way, by up to 2^-7 of a
# gradient for bfloat16. That is rare: nearly all elements are as near as with float32.
NARROW_WIRE, RARE = 5e-3, 0.02


def results_in(folder: Path, ranks: int) -> Results:
    """What the programs left: by name, one dict per process."""
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
    """The reference after so many steps.

    Args:
      kind: Of the optimizer.
      reduction: Of sparse gradients.
      steps: How many.
      start: What a program left; the tables' first rows are taken from it.
      senders: Ranks whose gradients are added up before they travel.
      wire: What they are rounded to then.
    """
    tables = []
    for t in range(len(batches.DIMS)):
        tables.append(dict(zip(batches.all_keys(t).tolist(), start[f"first{t}"], strict=True)))
    job = Simulation(batches.first_dense(), tables, kind, reduction, batches.RATES[kind], senders, wire)
    for step in range(steps):
        dense, sparse = [], []
        for rank in range(sum(map(len, senders))):
            one = batches.batch(step, rank)
            dense.append([w - target for w, target in zip(job.dense, one.dense_targets, strict=True)])
            sparse.append(
                [
                    SparseBatch(ids, job.rows(t, ids) - one.targets[t]) if len(ids) else None
                    for t, ids in enumerate(one.ids)
                ]
            )
        job.train(dense, sparse)
    return job


def table_errors(job: Simulation, found: dict[str, np.ndarray]) -> np.ndarray:
    """Of every element of the tables, relative to the largest weight of its table."""
    each = []
    for t in range(len(batches.DIMS)):
        expected = job.rows(t, batches.all_keys(t))
        each.append(np.abs(found[f"last{t}"] - expected).ravel() / np.abs(expected).max())
    return np.concatenate(each)


def largest_error(job: Simulation, found: dict[str, np.ndarray]) -> float:
    """Over tables and dense weights, relative to the largest weight of each."""
    dense = [np.abs(found[f"dense{i}"] - one).max() / np.abs(one).max() for i, one in enumerate(job.dense)]
    return float(max(table_errors(job, found).max(), *dense))
