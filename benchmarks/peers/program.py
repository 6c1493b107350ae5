"""What a peer's process runs: `python -m benchmarks.peers.program NAME MODULE ARGUMENT...`, started by `PeerSide`."""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import against, harness, peers

CALLS = 9


def measure(options: harness.Options) -> tuple[list[harness.Result], dict[str, str]]:
    """Both cases in each turn, lookups first."""
    name, module, *arguments = sys.argv[1:]
    rows, dim, count = (10_000, 64, 2_130) if options.quick else (1_000_000, 64, 213_000)
    draw = np.random.default_rng(1)
    work = importlib.import_module(f"benchmarks.peers.{module}").make(
        *arguments,
        rows=rows,
        dim=dim,
        ids=harness.zipf_ids(rows, count, batches=8),
        gradients=[draw.normal(0, 1e-3, (count, dim)).astype(np.float32) for _ in range(3)],
        threads=options.threads,
    )
    cases: dict[str, Callable[[], Any]] = dict(zip((peers.LOOKUP, peers.STEP), work, strict=True))
    for call in cases.values():
        for _ in range(3):
            call()
    blocks: dict[str, list[float]] = {case: [] for case in cases}
    assert options.turns is not None
    for _ in range(options.blocks):
        options.turns.next()
        for case, call in cases.items():
            times = []
            for _ in range(CALLS):
                began = time.perf_counter()
                call()
                times.append((time.perf_counter() - began) * 1e3)
            blocks[case].append(statistics.median(times))
    results = [
        result
        for case, figures in blocks.items()
        for result in harness.summarize("step", case, {name: figures}, peer=None, unit="ms")
    ]
    return results, {}


if __name__ == "__main__":
    against.work(measure)
