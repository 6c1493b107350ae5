"""The cluster suite: time and bytes per step of jobs on several emulated hosts, whose cables are slow.

A job runs `benchmarks.rank_job` on a number of hosts x a number of ranks. The variants of a job take turns. The suite
counts the bytes that pass a host's interface, over all timed steps.

An idle job sends bytes, too: Horovod asks about a thousand times per second whether there is work. The same job
measures this while all ranks sleep. The suite subtracts it for the time in which the cable was not full during the
steps: Horovod does not ask while a collective runs, so subtracting it for the whole time would be 2 to 3 % too much.
The report also has the raw figure. TensorFlow connects the ranks of the variant "tensorflow" and asks nothing. Horovod
connects the ranks of all other variants.

Bytes are counted as packets leave a host, up to 64 KiB each with one header. An Ethernet of 1,500 bytes per packet
carries about 5 % more. The floor of a step's time is the raw bytes of the busiest host and direction, divided by the
rate.

At the end the suite counts the rows of the table on each host: all of them, or a share for the variants "sharded".

All hosts share this machine's processors, and each rank has one thread if there are as many ranks as threads. The time
above the floor therefore does not predict that of hosts with their own processors.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import harness, host_job, hosts

# Each name's arguments of rank_job, and options of tsps.DistributedOptimizer.
_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("shared", {"topology": "flat"}),
    "hierarchical": ("shared", {}),
    "tensorflow": ("shared", {"collectives": "tensorflow"}),
    "hierarchical-bfloat16": ("shared", {"wire": "bfloat16"}),
    "sharded": ("shared --sharded float32", {}),
    "sharded-bfloat16": ("shared --sharded bfloat16", {"wire": "bfloat16"}),
    # Computing takes about as long as a pull at 200 Mbit/s.
    "sharded-wait": ("shared --sharded float32 --wait-ms 400", {}),
    "sharded-wait-ahead": ("shared --sharded float32 --wait-ms 400 --ahead", {}),
    "replicated": ("replicated", {}),
    "dense-only": ("shared --dense-only", {}),
}
_JOB_S = 1200.0


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run the job.

    Attributes:
        name: The name in the report.
        kind: The kind of rank_job, and further flags.
        optimizer: The arguments of `tsps.DistributedOptimizer`.
    """

    name: str
    kind: str
    optimizer: dict[str, Any]

    @property
    def engine(self) -> str:
        """The library that connects the job's ranks."""
        return "tensorflow" if self.optimizer.get("collectives") == "tensorflow" else "horovod"

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Returns a variant from its name or from `NAME:OPTION=VALUE,...`; values are JSON or words.

        Raises:
            ValueError: A name that needs options has none, or an option has no value.
        """
        name, _, rest = text.partition(":")
        pairs = [option.partition("=") for option in rest.split(",") if option]
        if (name not in _VARIANTS and not pairs) or any(not key or not sign for key, sign, _ in pairs):
            raise ValueError(f"a variant is one of {', '.join(_VARIANTS)}, or NAME:OPTION=VALUE,... Received: {text!r}")
        kind, preset = _VARIANTS.get(name, ("shared", {}))
        if pairs and kind == "replicated":
            raise ValueError(f"the variant replicated has no options. Received: {text!r}")
        return cls(name, kind, preset | {key: _value(value) for key, _, value in pairs})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def run(options: harness.Options) -> list[harness.Result]:
    """Measures times and bytes for each number of hosts.

    Raises:
        hosts.HostsUnavailable: Hosts cannot be emulated. The text names what is missing.
    """
    if reason := hosts.unavailable():
        raise hosts.HostsUnavailable(reason)
    variants = [Variant.parse(text) for text in options.cluster.variants]
    cases = list(itertools.product(options.cluster.hosts, options.cluster.ranks_per_host))
    cases = [(2, 1)] if options.quick else cases
    turns = 1 if options.quick else max(1, options.blocks // 2)
    results = []
    total = len(cases) * turns * len(variants)
    with tqdm(total=total, desc="cluster", unit=" jobs", delay=2, disable=None) as bar:
        for count, ranks_per_host in cases:
            figures: dict[str, list[dict[str, float]]] = {variant.name: [] for variant in variants}
            for turn in range(turns):
                if options.turns:
                    options.turns.next()
                for variant in variants if turn % 2 == 0 else reversed(variants):
                    bar.set_postfix_str(f"{count} x {ranks_per_host}, {variant.name}")
                    figures[variant.name].append(_job(variant, count, ranks_per_host, options))
                    bar.update()
            results += _report(figures, count, ranks_per_host, options.cluster.mbit_per_s)
    return results


_UNITS = {
    "step": "ms",
    "floor": "ms",
    "sent": "MB",
    "received": "MB",
    "sent, idle included": "MB",
    "idle, sent per second": "MB",
    "rows per host": "",
    "rows of the fullest host above the mean": "%",
}


def _report(
    figures: dict[str, list[dict[str, float]]], count: int, ranks_per_host: int, mbit_per_s: float
) -> list[harness.Result]:
    case = f"{count} host{'s' * (count > 1)} x {ranks_per_host}, {mbit_per_s:g} Mbit/s"
    parameters = {"hosts": count, "ranks_per_host": ranks_per_host, "mbit_per_s": mbit_per_s}
    results = []
    for figure, unit in _UNITS.items():
        if count == 1 and figure != "step":
            continue  # nothing leaves the host
        blocks = {name: [job[figure] for job in jobs] for name, jobs in figures.items() if figure in jobs[0]}
        if not blocks:
            continue  # no variant has a table of ours
        for result in harness.summarize("cluster", f"{case}: {figure}", blocks, peer=next(iter(blocks)), unit=unit):
            results.append(dataclasses.replace(result, parameters={**parameters, "figure": figure}))
    return results


def _job(variant: Variant, count: int, ranks_per_host: int, options: harness.Options) -> dict[str, float]:
    python = options.peer_python if variant.kind == "replicated" and options.peer_python else sys.executable
    threads = max(1, options.threads // (count * ranks_per_host))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [str(Path(python).absolute()), "-m", "benchmarks.rank_job", "--out", str(out)]
        command += ["--kind", *variant.kind.split(), "--optimizer", json.dumps(variant.optimizer)]
        command += ["--threads", str(threads), "--steps", str(options.cluster.steps), "--count-bytes", "eth0"]
        command += ["--quick"] if options.quick else []
        with (
            hosts.emulated(count, mbit_per_s=options.cluster.mbit_per_s) as network,
            host_job.started(network, ranks_per_host, command, collectives=variant.engine) as job,
        ):
            job.wait(_JOB_S)
        return per_step(json.loads(out.read_text()), options.cluster.mbit_per_s)


def per_step(figures: dict[str, Any], mbit_per_s: float) -> dict[str, float]:
    """Converts the figures of rank_job to those of the report: milliseconds and 10^6 bytes, means over the hosts.

    Args:
        figures: "steps", "step_ms", "idle" and "busy" as counted, and "rows" if hosts have a table of ours.
        mbit_per_s: The rate of a host.
    """
    idle, busy, steps = figures["idle"], figures["busy"], figures["steps"]
    number = len(busy["sent"])

    full = max(*busy["sent"], *busy["received"]) * 8 / (mbit_per_s * 1e6)

    def net(direction: str) -> float:
        idle_bytes = sum(idle[direction]) / idle["seconds"] * max(0.0, busy["seconds"] - full)
        return max(0.0, sum(busy[direction]) - idle_bytes) / number / steps / 1e6

    rows = figures.get("rows")
    rows_held = {}
    if rows:
        mean = sum(rows) / len(rows)
        rows_held = {"rows per host": mean, "rows of the fullest host above the mean": (max(rows) / mean - 1) * 100}
    return {
        "step": figures["step_ms"],
        "floor": full / steps * 1e3,
        "sent": net("sent"),
        "received": net("received"),
        "sent, idle included": sum(busy["sent"]) / number / steps / 1e6,
        "idle, sent per second": sum(idle["sent"]) / idle["seconds"] / number / 1e6,
        **rows_held,
    }
