"""The delayed suite: what is left of communicating when it runs beside computing (`tsps.schedules.DelayedGlobal`).

Two emulated hosts of one rank each. Their cables are slowed down until communicating alone takes as long as computing
alone, which a job before finds out; then a synchronous step takes the sum of both, and one that overlaps them the
larger. A host has its own share of the processors, which is all that computing and communicating have on it. All ways
take turns in one job: computing alone (gradients and the dense update), communicating alone (a synchronous step of
gradients that are there already, with the update of weights and tables), and both.

"late": each rank now and then takes twice the time. "one machine": two ranks and no cable, where communicating takes
next to nothing.
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
_BATCH = 16384  # computing takes long beside what communicating costs the processor
_QUICK_BATCH = 256
_BOTH = ("synchronous", "delayed-1", "delayed-4")
_JOB_S = 900.0


def run(options: harness.Options) -> list[harness.Result]:
    """Times for a dense model and one with a table.

    Raises:
        hosts.HostsUnavailable: naming what is missing.
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
    """Results of a case, and the share of each way of both in the larger of computing and communicating alone."""
    peer = "synchronous" if "synchronous" in times else None
    results = harness.summarize("delayed", case, times, peer=peer, unit="ms")
    if "communication" in times:
        alone = max(statistics.median(times[way]) for way in ("computing", "communication"))
        shares = {way: [one / alone for one in figures] for way, figures in times.items() if way in _BOTH}
        results += harness.summarize("delayed", f"{case}: of the larger alone", shares, peer=None, unit="x")
    return [dataclasses.replace(one, parameters={"case": case}) for one in results]


def job(
    ways: Sequence[str],
    flags: Sequence[str],
    options: harness.Options,
    mbit_per_s: float | None,
    *,
    blocks: int,
    record: str | None = None,
) -> dict[str, Any]:
    """The figures of `delay_job`: on two hosts with cables of this rate, or, None, on two ranks of one."""
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
        found: dict[str, Any] = json.loads(out.read_text())
        return found
