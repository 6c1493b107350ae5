"""The reference for these tests' batches, and how far results are from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import batches
import numpy as np
from mode_a import Simulation, SparseBatch

Results = dict[str, list[dict[str, np.ndarray]]]
TOLERANCE = {"sgd": 2e-6, "adagrad": 2e-6, "adam": 2e-5}
# Where a sum's last bit differs from the reference's, bfloat16 may round it the other way.
NARROW_WIRE = 5e-3


def results_in(folder: Path, ranks: int) -> Results:
    """What the programs left: by name, one dict per process."""
    names = {path.name.rsplit("-", 1)[0] for path in folder.glob("*.npz")}
    return {name: [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(ranks)] for name in names}


def largest_error(
    kind: str,
    reduction: str,
    steps: int,
    found: dict[str, np.ndarray],
    senders: Sequence[Sequence[int]],
    wire: str = "float32",
) -> float:
    """Of tables and dense weights after so many steps, relative to the largest weight of each.

    Args:
      kind: Of the optimizer.
      reduction: Of sparse gradients.
      steps: How many.
      found: From `loops.train`.
      senders: Ranks whose gradients are added up before they travel.
      wire: What they are rounded to then.
    """
    tables = []
    for t in range(len(batches.DIMS)):
        tables.append(dict(zip(batches.all_keys(t).tolist(), found[f"first{t}"], strict=True)))
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
    pairs = [(found[f"last{t}"], job.rows(t, batches.all_keys(t))) for t in range(len(batches.DIMS))]
    pairs += [(found[f"dense{i}"], one) for i, one in enumerate(job.dense)]
    return max(float(np.abs(one - expected).max() / np.abs(expected).max()) for one, expected in pairs)
