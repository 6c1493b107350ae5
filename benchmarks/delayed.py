"""The delayed suite: the cost of communicating that overlaps with computing (`tsps.schedules.DelayedGlobal`).

Two emulated hosts have one rank each. Their cables are slowed down until communicating alone takes as long as computing
alone; an earlier job measures the rate for this. A synchronous step then takes the sum of both times, and a step that
overlaps them takes the larger. Each host has its own share of the processors for both kinds of work. All ways take
turns in one job: computing alone (gradients and the dense update), communicating alone (a synchronous step with
gradients that were computed in advance, which updates weights and tables), and both.

In the case "late", each rank takes twice the time in some steps. The case "one machine" has two ranks and no cable, so
that communicating takes next to nothing.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import harness, host_job, hosts

_FIRST_MBIT_PER_S = 200.0
_BATCH = 16384  # computing takes long compared with the processor time of communicating
_QUICK_BATCH = 256
_BOTH = ("synchronous", "delayed-1", "delayed-4")
_JOB_S = 900.0


def run(options: harness.Options) -> list[harness.Result]:
    """Measures a dense model, and one with a table.

    Raises:
        hosts.HostsUnavailable: Hosts cannot be emulated. The text names what is missing.
    """
    if reason := hosts.unavailable():
        raise hosts.HostsUnavailable(reason)
    results = []
    models: tuple[tuple[str, list[str]], ...] = (("dense", []), ("table", ["--tables"]))
    with tqdm(total=4 * len(models), desc="delayed", unit=" jobs", delay=2, disable=None) as bar:
        for model, flags in models:
            bar.set_postfix_str(f"{model}, finding the rate")
            alone = job(("computing", "communication"), flags, options, _FIRST_MBIT_PER_S, blocks=2)["step_ms"]
            computing, communication = (statistics.median(alone[way]) for way in ("computing", "communication"))
            rate = _FIRST_MBIT_PER_S * communication / computing
            bar.update()
            cases = (
                (f"{rate:.0f} Mbit/s", ("computing", "communication", *_BOTH), flags, rate),
                (f"{rate:.0f} Mbit/s, late", ("computing", *_BOTH), [*flags, "--late"], rate),
                ("one machine", ("computing", "communication", *_BOTH), flags, None),
            )
            for case, ways, case_flags, mbit_per_s in cases:
                bar.set_postfix_str(f"{model}, {case}")
                times = job(ways, case_flags, options, mbit_per_s, blocks=options.blocks)["step_ms"]
                results += report(f"{model}, {case}", times)
                bar.update()
    return results


def report(case: str, times: dict[str, list[float]]) -> list[harness.Result]:
    """Returns the results of a case. Overlapped steps also get ratios to the larger of the two kinds of work alone."""
    peer = "synchronous" if "synchronous" in times else None
    results = harness.summarize("delayed", case, times, peer=peer, unit="ms")
    if "communication" in times:
        alone = max(statistics.median(times[way]) for way in ("computing", "communication"))
        shares = {way: [time_ms / alone for time_ms in figures] for way, figures in times.items() if way in _BOTH}
        results += harness.summarize("delayed", f"{case}: of the larger alone", shares, peer=None, unit="x")
    return [dataclasses.replace(result, parameters={"case": case}) for result in results]


def job(
    ways: Sequence[str],
    flags: Sequence[str],
    options: harness.Options,
    mbit_per_s: float | None,
    *,
    blocks: int,
    record: str | None = None,
) -> dict[str, Any]:
    """Runs `delay_job` on two hosts with cables of a rate, or (None) on two ranks of one host; returns its figures."""
    count, ranks_per_host = (1, 2) if mbit_per_s is None else (2, 1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.delay_job", "--out", str(out), "--ways", ",".join(ways), *flags]
        command += ["--blocks", str(2 if options.quick else blocks), "--steps", str(3 if options.quick else 10)]
        command += ["--batch", str(_QUICK_BATCH if options.quick else _BATCH)]
        command += ["--record", record] if record else []
        with (
            hosts.emulated(count, mbit_per_s=mbit_per_s) as network,
            host_job.started(network, ranks_per_host, command, own_processors=True) as started,
        ):
            started.wait(_JOB_S)
        document: dict[str, Any] = json.loads(out.read_text())
        return document
