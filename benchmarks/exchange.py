"""The exchange suite: the memory to reduce one huge sparse gradient per rank, on two nodes of two ranks.

Each rank counts the peak of its anonymous memory, less its anonymous memory before, and less the reduced gradients on
leaders; its own files of shared memory; and 16 MiB for Horovod's fusion buffer, even if it was not used. The report has
the figures of the rank with the most memory.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks import harness

_HOSTS = "localhost:2,127.0.0.1:2"
_JOB_S = 900


def run(options: harness.Options) -> list[harness.Result]:
    """Measures memory, rounds and seconds, for each wire format."""
    keys = 50_000 if options.quick else 2_000_000
    results = []
    for wire in ("float32",) if options.quick else ("float32", "bfloat16"):
        ranks = _job(keys, wire, options)
        case = f"{keys:,} keys x 64 of each of 4 ranks, {wire}"
        for figure, unit in (
            ("exchange_mib", "MiB"),
            ("private_mib", "MiB"),
            ("shared_mib", "MiB"),
            ("rounds", ""),
            ("seconds", "s"),
        ):
            values = [rank[figure] for rank in ranks]
            results.append(
                harness.Result(
                    "exchange",
                    f"{case}, {figure}",
                    "rank with the most",
                    max(values),
                    min(values),
                    max(values),
                    unit,
                    None,
                )
            )
    return results


def _job(keys: int, wire: str, options: harness.Options) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        launcher = str(Path(sys.executable).with_name("horovodrun"))
        command = [launcher, "--gloo", "-np", "4", "-H", _HOSTS, sys.executable, "-m", "benchmarks.exchange_job"]
        command += ["--keys", str(keys), "--wire", wire, "--out", str(out)]
        command += ["--threads", str(max(1, options.threads // 4))]
        figures: list[dict[str, float]] = harness.job_figures(command, out, _JOB_S)
        return figures
