"""The plan suite: what `tf-sparse-ps plan` estimates for twelve jobs, against what they need."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from benchmarks import harness, plan_cases


def run(options: harness.Options) -> list[harness.Result]:
    """Measures the bytes and the steps of each job. The ratio of an estimate is that to the measured figure."""
    results = []
    for name, case in plan_cases.ALL.items():
        if options.quick:
            case = dataclasses.replace(case, rows=case.rows // 10, ids=case.ids // 10)
        with (
            tempfile.TemporaryDirectory(prefix="tf_sparse_ps-plan-", dir="/dev/shm") as group,
            tempfile.TemporaryDirectory() as disk,
        ):
            repetitions = 1 if options.quick else max(1, options.blocks // 2)
            figures = plan_cases.compare(case, Path(group) / "job", Path(disk), repetitions)
        mib = {"measured": [figures.bytes / 2**20], "plan": [figures.expected_bytes / 2**20]}
        results += harness.summarize("plan", f"{name}, memory", mib, peer="measured", unit="MiB")
        ms = {"measured": list(figures.ms), "plan": list(figures.expected_ms)}
        results += harness.summarize("plan", f"{name}, step", ms, peer="measured", unit="ms")
    return results
