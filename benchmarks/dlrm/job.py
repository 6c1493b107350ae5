"""One rank of a job that trains DLRM: `python -m benchmarks.dlrm.job MODULE --clicks FOLDER --out FILE ...`.

MODULE is a module of this package, whose function `make` returns a framework's `Work`. All frameworks read the same
batches, in the same order, by the same code.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.dlrm.clicks import Batch, Clicks
from support import memory, metrics

_WARMUP = 5


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a job, which `make` receives.

    Attributes:
        tables: The number of rows of each table.
        dim: The width of all rows.
        bottom, top: The widths of the hidden layers below and above the interaction.
        learning_rate: The learning rate of Adagrad. Its accumulators begin at 0.
        epsilon: What Keras adds to an accumulator before it takes the root. Other libraries add the root of epsilon to
            the root, which is nearly the same.
        threads: The number of threads of a rank.
        batch: The samples of a rank in each step.
    """

    tables: list[int]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    learning_rate: float
    epsilon: float
    threads: int
    batch: int


@dataclasses.dataclass(frozen=True)
class Work:
    """A framework's part of a job.

    Attributes:
        rank, size: This rank, and the number of ranks.
        step: Trains a batch. It returns when the step is done.
        score: Returns the logits of a batch, float32[size]. All ranks call it together.
        gather: Returns every rank's number, in rank order. It is a barrier, too.
    """

    rank: int
    size: int
    step: Callable[[Batch], object]
    score: Callable[[Batch], NDArray[np.float32]]
    gather: Callable[[float], list[float]]


def main() -> None:
    """Trains all batches. Rank 0 writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="the framework: a module of benchmarks.dlrm")
    parser.add_argument("--clicks", type=Path, required=True, help="a folder that write_clicks has written")
    parser.add_argument("--batch", type=int, required=True, help="samples of all ranks in each step")
    parser.add_argument("--ranks", type=int, required=True, help="the number of ranks, for the batch of a rank")
    parser.add_argument("--threads", type=int, required=True, help="threads of each rank")
    parser.add_argument("--began", type=float, required=True, help="the time at which the job was started")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file that rank 0 writes")
    options = parser.parse_args()

    clicks = Clicks(options.clicks)
    batch = options.batch // options.ranks
    # The sizes of `make train`: examples/ctr/models.py, examples/train_ctr.py. FBGEMM has no Adam for CPUs.
    settings = Settings(clicks.tables, 16, (64,), (128, 64), 0.03, 1e-6, options.threads, batch)
    work: Work = importlib.import_module(f"benchmarks.dlrm.{options.module}").make(settings)
    if work.size != options.ranks:
        raise RuntimeError(f"the job was to have {options.ranks} ranks. Received: {work.size}")

    def next_batch(step: int) -> Batch:
        return clicks.read(clicks.train, step * work.size + work.rank, batch)

    steps = clicks.count(clicks.train) // options.batch
    work.step(next_batch(0))
    first_step_s = time.time() - options.began
    for step in range(1, _WARMUP):
        work.step(next_batch(step))
    work.gather(0)
    began = time.perf_counter()
    for step in range(_WARMUP, steps):
        work.step(next_batch(step))
    work.gather(0)
    seconds = time.perf_counter() - began
    pss = sum(work.gather(memory.process_pss()))
    area = auc(work, clicks)
    if work.rank == 0:
        figures = {
            "samples_per_second": options.batch * (steps - _WARMUP) / seconds,
            "pss_mib": pss / 2**20,
            "first_step_s": first_step_s,
            "auc": area,
        }
        options.out.write_text(json.dumps(figures))


def auc(work: Work, clicks: Clicks) -> float:
    """Returns the area under the ROC curve of the held-out clicks."""
    size = 8192
    batches = [clicks.read(clicks.test, number, size) for number in range(clicks.count(clicks.test) // size)]
    logits = np.concatenate([work.score(batch) for batch in batches])
    return metrics.auc(np.concatenate([batch.labels for batch in batches]), logits)


if __name__ == "__main__":
    main()
