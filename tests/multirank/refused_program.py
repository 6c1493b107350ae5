"""One rank of the tests of refused steps. It writes the results of training with and without the refused batches.

Arguments: the cases, separated by commas; the folder for results. The cases are those of `refused_batches.CASES`, whose
batches the last rank spoils; "growth": the last node's table cannot grow; and "order": the leader's tables are at
another step once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import refused_batches
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops


def spoil_targets(i: int, ids: np.ndarray, targets: np.ndarray) -> None:
    """Spoils the targets of the last rank alone; the others' gradients are valid."""
    if this_rank.rank() == this_rank.size() - 1:
        targets[0] = np.nan


def let_no_table_grow(i: int, ids: np.ndarray, targets: np.ndarray) -> Callable[[], None] | None:
    """Renames the files that must grow, for a batch with too many new keys, so that the last leader misses them."""
    job = tsps.job.current()
    tables = sorted(Path(job.group_path).glob("t*"))[-1]
    n = (tables / "plane.embedding.1").stat().st_size // (4 * 4) // 3 + 1000
    ids.resize((n, 3), refcheck=False)
    targets.resize((n, 1), refcheck=False)
    ids[:] = np.arange(ids.size).reshape(ids.shape) + 10_000_000
    targets[:] = 1.0
    job.collectives.barrier("test.sizes")  # all ranks look before files are renamed
    away = tables.with_name("away")
    is_last_leader = job.is_leader and job.node == len(job.leaders) - 1
    if is_last_leader:
        tables.rename(away)

    def put_back() -> None:
        if is_last_leader:
            away.rename(tables)
        job.collectives.barrier("test.back")  # no rank looks for files before they are back

    return put_back


def change_the_step(i: int, ids: np.ndarray, targets: np.ndarray) -> Callable[[], None] | None:
    """Changes the step of the last node's tables, so that its leader finds another one than it makes."""
    job = tsps.job.current()
    if not (job.is_leader and job.node == len(job.leaders) - 1):
        return None
    step = int(job.step)
    _ops.set_step(job.group_path, step + 7)
    return lambda: _ops.set_step(job.group_path, step)


SPOIL: dict[str, Any] = {"growth": let_no_table_grow, "order": change_the_step}


def main() -> None:
    """Runs the cases."""
    this_rank.init()
    cases, folder = sys.argv[1].split(","), Path(sys.argv[2])
    for case in cases:
        print(f"rank {this_rank.rank()}: {case}", flush=True)
        spoil = SPOIL.get(case, spoil_targets)
        case = case if case in refused_batches.CASES else "synchronous"
        trained, errors = refused_batches.train(case, bad=True, rank=this_rank.rank(), spoil=spoil)
        expected, _ = refused_batches.train(case, bad=False, rank=this_rank.rank())
        name = sys.argv[1].split(",")[len(list(folder.glob(f"*-{this_rank.rank()}.npz")))]
        facts = {"errors": errors, "differences": refused_batches.differences(trained, expected)}
        arrays = {key.split(" ")[0]: value for key, value in trained.items()}
        np.savez(folder / f"{name}-{this_rank.rank()}.npz", facts=np.array(json.dumps(facts)), **arrays)


if __name__ == "__main__":
    main()
