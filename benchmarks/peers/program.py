"""A peer's process, which `PeerSide` starts: `python -m benchmarks.peers.program SUITE NAME MODULE ARGUMENT...`."""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import against, feature_sizes, harness, peers


def one_table(options: harness.Options) -> dict[str, peers.Work]:
    """Returns the work of the suite `step`."""
    rows, dim, count = (10_000, 64, 2_130) if options.quick else (1_000_000, 64, 213_000)
    ids = harness.zipf_ids(rows, count, batches=8)
    return {"": peers.Work(rows, dim, ids, harness.normal_gradients(count, dim), options.threads)}


def many_tables(options: harness.Options) -> dict[str, peers.Work]:
    """Returns the work of the suite `layers`, by its sizes."""
    return {
        str(sizes): peers.Work(feature_sizes.ROWS, sizes.dim(0), sizes.batches(8), sizes.gradients(), options.threads)
        for sizes in feature_sizes.PEER_CASES
    }


# Each suite's work, the function of a peer's module that does it, and the number of calls in a block.
SUITES: dict[str, tuple[Callable[[harness.Options], dict[str, peers.Work]], str, int]] = {
    "step": (one_table, "one_table", 9),
    "layers": (many_tables, "many_tables", 50),
}


def measure(options: harness.Options) -> tuple[list[harness.Result], dict[str, str]]:
    """Measures all cases in each turn, lookups first."""
    suite, name, module, *arguments = sys.argv[1:]
    make_works, function, calls = SUITES[suite]
    make_calls = getattr(importlib.import_module(f"benchmarks.peers.{module}"), function)
    cases: dict[str, Callable[[], Any]] = {}
    for sizes, work in make_works(options).items():
        names = [peers.case(kind, sizes) for kind in (peers.LOOKUP, peers.STEP)]
        cases |= dict(zip(names, make_calls(work, *arguments), strict=True))
    for call in cases.values():
        for _ in range(3):
            call()
    blocks: dict[str, list[float]] = {case: [] for case in cases}
    assert options.turns is not None
    for _ in range(options.blocks):
        options.turns.next()
        for case, call in cases.items():
            times = []
            for _ in range(calls):
                began = time.perf_counter()
                call()
                times.append((time.perf_counter() - began) * 1e3)
            blocks[case].append(statistics.median(times))
    results = [
        result
        for case, figures in blocks.items()
        for result in harness.summarize(suite, case, {name: figures}, peer=None, unit="ms")
    ]
    return results, {}


if __name__ == "__main__":
    against.work(measure)
