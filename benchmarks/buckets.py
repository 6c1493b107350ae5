"""The buckets suite: TimedBuckets beside an operation per gradient, the plain schedule, and buckets of fixed sizes.

A job is one of the models of `benchmarks.bucket_job` on 2 or 4 ranks, on this machine or on two emulated hosts; the
variants take turns within the job, and what is compared is what stood side by side in the same turn. Steps take 15 ms
to 2 s, and the short ones vary most: there are turns for 10 s per --blocks (2 s in jobs of one variant), and at least
half of --blocks.

"per-tensor again" is the same as "per-tensor": half the distance between the quartiles of its ratios is what a ratio
may be off. A fixed size that comes to the same plan as "timed", or as a smaller size, has its figures: it is the same
thing.

Bytes are those that leave a host. Beyond the gradients, of which a ring of N ranks takes 2 (N - 1) / N times their size
over the cable of each host, that is what ranks tell each other to agree on what is ready (Horovod asks a thousand times
per second, whatever is done: a shorter step has less of it), and headers. Each time Horovod sends a bit for every
tensor that it remembers, so these bytes are counted in jobs of one variant each.
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
ALONE = (PEER, CONTROL, "timed")  # in jobs of their own, too, on hosts
_STEPS = 10  # in a block
_SECONDS = 10.0  # of turns, per --blocks
_SECONDS_ALONE = 2.0  # the same, where a job has one variant only
_JOB_S = 1800.0
# Horovod forgets operations beyond that many, 1,024 by default: the variants together have more.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_CACHE_CAPACITY": "8192"}
_FIGURES = {
    "step_ms": ("step", "ms"),
    "cpu_ms": ("processor time of all ranks", "ms"),
    "tensors": ("tensors enqueued", ""),
    "operations": ("operations enqueued", ""),
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a job runs.

    Attributes:
        ranks: of the job.
        hosts: emulated; 0: none, all ranks are on this machine as it is.
    """

    ranks: int
    hosts: int = 0

    @property
    def words(self) -> str:
        """For the report."""
        return f"{self.ranks} ranks" + (f" on {self.hosts} hosts" if self.hosts else "")


def run(options: harness.Options) -> list[harness.Result]:
    """Time, processor time, tensors and bytes per step for each model and number of ranks."""
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
    """Results from the figures of a job of all variants.

    Args:
        model: its name.
        place: where it ran.
        figures: of bucket_job.
    """
    case, parameters = _case(model, place, figures)
    results = []
    for figure, (words, unit) in _FIGURES.items():
        blocks = {name: _over_ranks(figures["ranks"], name, figure) for name in figures["plans"]}
        blocks |= {name: blocks[other] for name, other in figures["same"].items()}
        for one in harness.summarize("buckets", f"{case}: {words}", blocks, peer=PEER, unit=unit):
            results.append(dataclasses.replace(one, parameters={**parameters, "figure": figure}))
        if figure == "step_ms":
            results += _ratios(case, blocks, parameters)
    return results


def report_alone(model: str, place: Place, jobs: dict[str, dict[str, Any]]) -> list[harness.Result]:
    """What hosts send beyond the gradients, from the figures of jobs of one variant each; `jobs`: by variant."""
    case, parameters = _case(model, place, jobs["timed"])
    plan = jobs["timed"]["plans"]["timed"]
    size = 4 * sum(math.prod(one["shape"]) for one in plan["gradients"]) / 1e3
    ring = 2 * (place.ranks - 1) / place.ranks * size
    blocks = {
        name: [sent - ring for sent in _over_ranks(figures["ranks"], name, "sent_kb")] for name, figures in jobs.items()
    }
    label = f"{case}: sent per host beyond the gradients"
    return [
        dataclasses.replace(one, parameters={**parameters, "figure": "control_kb"})
        for one in harness.summarize("buckets", label, blocks, peer=PEER, unit="kB")
    ]


def _case(model: str, place: Place, figures: dict[str, Any]) -> tuple[str, dict[str, float | str]]:
    plan = figures["plans"]["timed"]
    parameters: dict[str, float | str] = {"model": model, "ranks": place.ranks, "hosts": place.hosts}
    parameters |= {"buckets": len(plan["buckets"]), "profiles": plan["profiles"], "erratic": str(plan["erratic"])}
    return f"{model}, {place.words}", parameters


def _over_ranks(ranks: Sequence[dict[str, Any]], name: str, figure: str) -> list[float]:
    """A figure of a variant, block by block: of the slowest rank, of all together, or a mean."""
    of_rank = [[block[figure] for block in rank["blocks"][name]] for rank in ranks]
    if figure == "sent_kb":  # counted by every rank of a host
        of_rank = [one for one, rank in zip(of_rank, ranks, strict=True) if rank["local_rank"] == 0]
    combine = {"step_ms": max, "cpu_ms": sum}.get(figure, statistics.fmean)
    return [combine(block) for block in zip(*of_rank, strict=True)]


def _ratios(case: str, blocks: dict[str, list[float]], parameters: dict[str, float | str]) -> list[harness.Result]:
    """Of the step's time within the same turn: to the peer, and of "timed" to the best fixed size."""
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
    """Runs a job of some variants, for so many seconds per --blocks; returns the figures of bucket_job."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        # The suite's folder is what may be looked at afterwards.
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
