"""The buckets suite: TimedBuckets against an operation per gradient, the plain schedule, and buckets of fixed sizes.

A job trains one of the models of `benchmarks.bucket_job` on 2 or 4 ranks, on this machine or on two emulated hosts. The
variants take turns within the job, and figures of the same turn are compared. Steps take 15 ms to 2 s, and short steps
vary most. The turns of a job therefore take 10 s per --blocks (2 s in jobs of one variant), and their number is at
least half of --blocks.

"per-tensor again" is the same as "per-tensor": half the distance between the quartiles of its ratios is the uncertainty
of a ratio. If a fixed size leads to the same plan as "timed" or as a smaller size, the report repeats the figures of
that variant.

The suite also counts the bytes that leave a host. A ring of N ranks sends 2 (N - 1) / N times the size of the gradients
over each host's cable. The other bytes are headers, and messages by which the ranks agree on what is ready. Horovod
sends these a thousand times per second, whatever the ranks do, so a shorter step sends fewer. Each message has a bit
for every tensor that Horovod remembers. These bytes are therefore counted in jobs of one variant each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import harness, host_job, hosts

PEER, CONTROL = "per-tensor", "per-tensor again"
FIXED = tuple(f"fixed {1 << power}" for power in (16, 18, 20, 22, 24))  # bytes
VARIANTS = (PEER, "synchronous", "timed", CONTROL, *FIXED)
MODELS = ("400 x 1k floats", "60 layers", "120 x 64k floats")
ALONE = (PEER, CONTROL, "timed")  # these variants also run in their own jobs on hosts
_STEPS = 10  # in a block
_SECONDS = 10.0  # of turns, per --blocks
_SECONDS_ALONE = 2.0  # the same, where a job has one variant only
_JOB_S = 1800.0
# Horovod's cache holds 1,024 operations by default. The variants together have more.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_CACHE_CAPACITY": "8192"}
_FIGURES = {
    "step_ms": ("step", "ms"),
    "cpu_ms": ("processor time of all ranks", "ms"),
    "tensors": ("tensors enqueued", ""),
    "operations": ("operations enqueued", ""),
}


@dataclasses.dataclass(frozen=True)
class Place:
    """The ranks and hosts of a job.

    Attributes:
        ranks: The number of ranks of the job.
        hosts: The number of emulated hosts; 0: all ranks run on this machine as it is.
    """

    ranks: int
    hosts: int = 0

    @property
    def words(self) -> str:
        """A description for the report."""
        return f"{self.ranks} ranks" + (f" on {self.hosts} hosts" if self.hosts else "")


def run(options: harness.Options) -> list[harness.Result]:
    """Measures time, processor time, tensors and bytes per step for each model and number of ranks."""
    places = [Place(2)] if options.quick else [Place(2), Place(4), Place(2, 2), Place(4, 2)]
    if not options.quick and (reason := hosts.unavailable()):
        print(f"buckets: one machine only, {reason}", flush=True)
        places = [place for place in places if not place.hosts]
    models = MODELS[:1] if options.quick else MODELS
    results = []
    with tqdm(total=len(places) * len(models), desc="buckets", unit=" jobs", delay=2, disable=None) as bar:
        for model in models:
            for place in places:
                bar.set_postfix_str(f"{model}, {place.words}")
                results += report(model, place, job(model, place, VARIANTS, options))
                if place.hosts:
                    jobs = {name: job(model, place, (name,), options, _SECONDS_ALONE) for name in ALONE}
                    results += report_alone(model, place, jobs)
                bar.update()
    return results


def report(model: str, place: Place, figures: dict[str, Any]) -> list[harness.Result]:
    """Returns results from the figures of a job of all variants.

    Args:
        model: The name of the model.
        place: The ranks and hosts of the job.
        figures: The figures that bucket_job wrote.
    """
    case, parameters = _case(model, place, figures)
    results = []
    for figure, (words, unit) in _FIGURES.items():
        blocks = {name: _over_ranks(figures["ranks"], name, figure) for name in figures["plans"]}
        blocks |= {name: blocks[other] for name, other in figures["same"].items()}
        for result in harness.summarize("buckets", f"{case}: {words}", blocks, peer=PEER, unit=unit):
            results.append(dataclasses.replace(result, parameters={**parameters, "figure": figure}))
        if figure == "step_ms":
            results += _ratios(case, blocks, parameters)
    return results


def report_alone(model: str, place: Place, jobs: dict[str, dict[str, Any]]) -> list[harness.Result]:
    """Returns the bytes that hosts send in addition to gradients. `jobs`: figures of jobs of one variant, by name."""
    case, parameters = _case(model, place, jobs["timed"])
    plan = jobs["timed"]["plans"]["timed"]
    size = 4 * sum(math.prod(gradient["shape"]) for gradient in plan["gradients"]) / 1e3
    ring = 2 * (place.ranks - 1) / place.ranks * size
    blocks = {
        name: [sent - ring for sent in _over_ranks(figures["ranks"], name, "sent_kb")] for name, figures in jobs.items()
    }
    label = f"{case}: sent per host beyond the gradients"
    return [
        dataclasses.replace(result, parameters={**parameters, "figure": "control_kb"})
        for result in harness.summarize("buckets", label, blocks, peer=PEER, unit="kB")
    ]


def _case(model: str, place: Place, figures: dict[str, Any]) -> tuple[str, dict[str, float | str]]:
    plan = figures["plans"]["timed"]
    parameters: dict[str, float | str] = {"model": model, "ranks": place.ranks, "hosts": place.hosts}
    parameters |= {"buckets": len(plan["buckets"]), "profiles": plan["profiles"], "erratic": str(plan["erratic"])}
    return f"{model}, {place.words}", parameters


def _over_ranks(ranks: Sequence[dict[str, Any]], name: str, figure: str) -> list[float]:
    """Returns a figure of a variant, block by block: that of the slowest rank, the sum over ranks, or the mean."""
    by_rank = [[block[figure] for block in rank["blocks"][name]] for rank in ranks]
    if figure == "sent_kb":  # counted by every rank of a host
        by_rank = [figures for figures, rank in zip(by_rank, ranks, strict=True) if rank["local_rank"] == 0]
    combine = {"step_ms": max, "cpu_ms": sum}.get(figure, statistics.fmean)
    return [combine(block) for block in zip(*by_rank, strict=True)]


def _ratios(case: str, blocks: dict[str, list[float]], parameters: dict[str, float | str]) -> list[harness.Result]:
    """Returns ratios of step times within the same turn: to the peer, and of "timed" to the best fixed size."""
    fixed = [name for name in blocks if name in FIXED]
    pairs = [(name, PEER) for name in blocks if name != PEER]
    if fixed:
        best = min(fixed, key=lambda name: statistics.median(blocks[name]))
        pairs.append(("timed", best))
    control = _quartiles([a / b for a, b in zip(blocks[CONTROL], blocks[PEER], strict=True)])
    half_spread = (control[2] - control[0]) / 2
    results = []
    for name, peer in pairs:
        low, median, high = _quartiles([a / b for a, b in zip(blocks[name], blocks[peer], strict=True)])
        facts = {**parameters, "figure": "ratio", "to": peer, "half_spread_of_control": half_spread}
        label = f"{case}: step, by turn, to {peer} (quartiles; A/A half-spread {half_spread:.3f})"
        results.append(harness.Result("buckets", label, name, median, low, high, "x", None, facts))
    return results


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def job(
    model: str, place: Place, variants: Sequence[str], options: harness.Options, seconds: float = _SECONDS
) -> dict[str, Any]:
    """Runs a job of some variants, for `seconds` per --blocks; returns the figures that bucket_job wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        # The plot stays in the folder of results.
        plot = Path("build/benchmarks").absolute() / f"plan-{model}-{place.words}.png".replace(" ", "-")
        plot.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.bucket_job", "--model", model, "--out", str(out)]
        command += ["--threads", str(max(1, options.threads // place.ranks)), "--plot", str(plot)]
        blocks = 0 if options.quick else options.blocks
        command += ["--blocks", str(max(2, blocks // 2)), "--seconds", str(seconds * blocks), "--steps", str(_STEPS)]
        command += [word for name in variants for word in ("--variant", name)]
        if place.hosts:
            _on_hosts(place, [*command, "--count-bytes", "eth0"], options.cluster.mbit_per_s)
        else:
            _here(place.ranks, command)
        return dict(json.loads(out.read_text()))


def _on_hosts(place: Place, command: Sequence[str], mbit_per_s: float) -> None:
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(hosts.emulated(place.hosts, mbit_per_s=mbit_per_s))
        ranks_per_host = place.ranks // place.hosts
        started = stack.enter_context(host_job.started(network, ranks_per_host, command, env=_ENVIRONMENT))
        started.wait(_JOB_S)


def _here(ranks: int, command: Sequence[str]) -> None:
    launcher = Path(sys.executable).with_name("horovodrun")
    started = [sys.executable, str(launcher), "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}", *command]
    environment = os.environ | _ENVIRONMENT | {"PYTHONPATH": str(host_job.ROOT)}
    done = subprocess.run(started, capture_output=True, text=True, env=environment, cwd=host_job.ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(started)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
