"""Computes bytes and time per step on clusters of 1 to 1,024 nodes, by the formulas of `benchmarks.step_model`.

`python -m benchmarks.scaling_model` prints the assumptions and a table. `--plot FILE` draws the table. `--check FILE`
compares the formulas with figures that `python -m benchmarks cluster --json FILE` has measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import step_model
from benchmarks.step_model import Cluster, Costs, Job

METHODS = ("flat", "hierarchical", "hierarchical-bfloat16", "sharded", "sharded-bfloat16")
NODES = tuple(2**exponent for exponent in range(11))
# Measured by `python -m benchmarks cluster --hosts 1 --ranks-per-host 1,2,4 --variant flat --blocks 6` on two cores of
# an AMD EPYC: 19.7, 67.1 and 127 ms. With these costs the model computes 20.8, 57.3 and 133 ms.
COSTS = Costs(rank_ms=35.7, copy_ns=0.634)
BYTES_GOAL, TIME_GOAL = 0.05, 0.25


@dataclasses.dataclass(frozen=True)
class Point:
    """A method on a number of nodes: the bytes that a node sends per step, and the milliseconds of a step."""

    method: str
    nodes: int
    sent_bytes: float
    step_ms: float


@dataclasses.dataclass(frozen=True)
class Check:
    """A measured figure of a job, and the model's; in bytes or milliseconds."""

    case: str
    method: str
    figure: str
    measured: float
    model: float

    @property
    def error(self) -> float:
        """The relative error of the model."""
        return self.model / self.measured - 1

    @property
    def goal(self) -> float:
        """The largest error that is accepted."""
        return BYTES_GOAL if self.figure == "bytes" else TIME_GOAL


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status, 1 if an error exceeds its goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling_model", description=__doc__)
    parser.add_argument("--ranks-per-node", type=int, default=2, help="ranks per node (default: 2)")
    parser.add_argument("--mbit", type=float, default=10_000, help="Mbit/s per node (default: 10000)")
    parser.add_argument("--cores", type=int, default=2, help="cores per node (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="threads per rank (default: 1)")
    parser.add_argument("--latency-us", type=float, default=50.0, help="latency of a message (default: 50)")
    parser.add_argument(
        "--schedule", choices=("synchronous", "delayed"), default="synchronous", help="schedule of dense gradients"
    )
    parser.add_argument(
        "--operations", type=int, default=1, help="operations of the dense ring in a step: buckets (default: 1)"
    )
    parser.add_argument("--calibration", type=Path, help="results of the suite cluster with one host, to set the costs")
    parser.add_argument("--check", type=Path, help="results of the suite cluster, to compare the model with")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", type=Path, help="the PNG file to write")
    arguments = parser.parse_args(argv)
    job = Job(operations=arguments.operations)
    try:
        costs = costs_from(job, json.loads(arguments.calibration.read_text())) if arguments.calibration else COSTS
        if arguments.check:
            return _report_checks(check(job, json.loads(arguments.check.read_text()), costs), as_json=arguments.json)
    except ValueError as error:
        parser.error(str(error))
    cluster = Cluster(
        1, arguments.ranks_per_node, arguments.mbit, arguments.cores, arguments.threads, arguments.latency_us
    )
    points = curve(job, cluster, costs, delayed=arguments.schedule == "delayed")
    if arguments.plot:
        plot(points, cluster, arguments.plot)
    if arguments.json:
        document = {
            "assumptions": step_model.__doc__,
            "schedule": arguments.schedule,
            "job": dataclasses.asdict(job),
            "cluster": {name: value for name, value in dataclasses.asdict(cluster).items() if name != "nodes"},
            "costs": dataclasses.asdict(costs),
            "points": [dataclasses.asdict(point) for point in points],
        }
        print(json.dumps(document, indent=1))
    else:
        print(f"{step_model.__doc__}\n{_inputs(job, cluster, costs)}\n\n{table(points, job, cluster)}")
    return 0


def curve(job: Job, cluster: Cluster, costs: Costs, *, delayed: bool = False) -> list[Point]:
    """Computes every method on every number of nodes.

    Args:
        job: The job that is trained.
        cluster: A cluster of one node, whose number of nodes is replaced.
        costs: The costs of work on one core.
        delayed: Whether to compute steps under `DelayedGlobal`, which refuses sharded tables.
    """
    points = []
    methods = [method for method in METHODS if not (delayed and method.startswith("sharded"))]
    for nodes in NODES:
        here = dataclasses.replace(cluster, nodes=nodes)
        for method in methods:
            step_time = step_model.step_time(method, job, here, costs)
            time = step_time.delayed if delayed else step_time.total
            points.append(Point(method, nodes, step_model.sent_bytes(method, job, here), time))
    return points


def table(points: Sequence[Point], job: Job, cluster: Cluster) -> str:
    """Formats the curve as Markdown, with the number of distinct keys of all ranks."""
    methods = list(dict.fromkeys(point.method for point in points))
    heads = [f"{method} {unit}" for unit in ("MB", "ms") for method in methods]
    lines = [f"| nodes | distinct keys | {' | '.join(heads)} |", "|---:|---:|" + "---:|" * len(heads)]
    for nodes in NODES:
        point_of = {point.method: point for point in points if point.nodes == nodes}
        sizes = [_number(point_of[method].sent_bytes / 1e6) for method in methods]
        times = [_number(point_of[method].step_ms) for method in methods]
        keys = job.distinct(nodes * cluster.ranks_per_node)
        lines.append(f"| {nodes:,} | {keys:,.0f} | {' | '.join(sizes + times)} |")
    return "\n".join(lines)


def _inputs(job: Job, cluster: Cluster, costs: Costs) -> str:
    return (
        f"Job: {job.rows:,} rows x {job.dim}, {job.ids:,} ids per rank by Zipf's law ({job.exponent:g}), "
        f"{job.dense:,} dense floats.\n"
        f"Keys: {job.distinct(1):,.0f} of a rank, {job.distinct(cluster.ranks_per_node):,.0f} of a node.\n"
        f"Nodes: {cluster.ranks_per_node} ranks, {cluster.cores} cores, {cluster.mbit_per_s:g} Mbit/s, "
        f"{cluster.threads} threads per rank, {cluster.latency_us:g} us per message.\n"
        f"Costs, of one core: {costs.rank_ms:.3g} ms per rank, {costs.copy_ns:.3g} ns per byte copied, "
        f"{costs.merge_ns:.3g} ns per key merged, {costs.update_ns:.3g} ns per key updated, {costs.pull_ns:.3g} ns per "
        "key looked up in a sharded table.\n"
        "Below: MB (10^6 bytes) that a node sends per step, and milliseconds per step."
    )


def plot(points: Sequence[Point], cluster: Cluster, path: Path) -> None:
    """Draws bytes and time over the number of nodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    styles = dict(zip(METHODS, ("o-", "s-", "d-", "^-", "v-"), strict=True))
    for method in dict.fromkeys(point.method for point in points):
        style = styles[method]
        own_points = [point for point in points if point.method == method]
        several = [point for point in own_points if point.nodes > 1]
        left.plot([p.nodes for p in several], [p.sent_bytes / 1e6 for p in several], style, label=method, markersize=4)
        right.plot([p.nodes for p in own_points], [p.step_ms for p in own_points], style, label=method, markersize=4)
    left.set(title="sent per node and step", ylabel="MB")
    right.set(title=f"step, {cluster.ranks_per_node} ranks per node, {cluster.mbit_per_s:g} Mbit/s", ylabel="ms")
    for axes in (left, right):
        axes.set(xlabel="nodes", yscale="log")
        axes.set_xscale("log", base=2)
        axes.set_xticks(NODES, [str(nodes) for nodes in NODES])
        axes.grid(alpha=0.3)
    left.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def costs_from(job: Job, document: Any) -> Costs:
    """Returns costs that explain the measured steps of one host.

    Args:
        job: The job that was trained.
        document: The results that the suite cluster has written.

    Raises:
        ValueError: The document lacks one host with two numbers of ranks.
    """
    _refuse_quick(document)
    steps = {
        int(result["parameters"]["ranks_per_host"]): float(result["median"])
        for result in document["results"]
        if _is(result, "step") and result["parameters"]["hosts"] == 1 and result["variant"] == "flat"
    }
    return step_model.calibrated(job, steps, cores=_cores(document), threads=document["options"]["threads"])


def check(job: Job, document: Any, costs: Costs) -> list[Check]:
    """Compares the model with the figures of several hosts.

    Args:
        job: The job that was trained.
        document: The results that the suite cluster has written.
        costs: The costs of work on one core of the machine that measured.

    Raises:
        ValueError: The document has no such figures.
    """
    _refuse_quick(document)
    checks = []
    # Dense gradients alone are left out: their bytes do not exceed those that Horovod sends when idle.
    comparable = {*step_model.TIMED, "replicated"}
    for result in document["results"]:
        case, method = result["parameters"], result["variant"]
        if method not in comparable or not (_is(result, "step") or _is(result, "sent")) or case["hosts"] == 1:
            continue
        ranks = case["hosts"] * case["ranks_per_host"]
        threads = max(1, document["options"]["threads"] // ranks)
        cluster = Cluster(
            case["hosts"], case["ranks_per_host"], case["mbit_per_s"], _cores(document), threads, emulated=True
        )
        name = result["case"].partition(":")[0]
        if _is(result, "sent"):
            model = step_model.sent_bytes(method, job, cluster)
            checks.append(Check(name, method, "bytes", result["median"] * 1e6, model))
        elif method in step_model.TIMED:
            model = step_model.step_time(method, job, cluster, costs).total
            checks.append(Check(name, method, "ms", result["median"], model))
    if not checks:
        raise ValueError("the file has no figures of several hosts: python -m benchmarks cluster --hosts 2,3,4")
    return checks


def _is(result: Any, figure: str) -> bool:
    return result["suite"] == "cluster" and result["parameters"]["figure"] == figure


def _cores(document: Any) -> int:
    return int(document["hardware"]["cores"])


def _refuse_quick(document: Any) -> None:
    if document["options"]["quick"]:
        raise ValueError(
            "the file is of a run with --quick, whose sizes differ from the model's. Run the suite again without it"
        )


def _report_checks(checks: Sequence[Check], *, as_json: bool) -> int:
    if as_json:
        print(
            json.dumps(
                [{**dataclasses.asdict(item), "error": item.error, "goal": item.goal} for item in checks],
                indent=1,
            )
        )
    else:
        print("| case | variant | figure | measured | model | error | goal |\n|---|---|---|---:|---:|---:|---:|")
        for item in checks:
            print(
                f"| {item.case} | {item.method} | {item.figure} | {item.measured:,.0f} | {item.model:,.0f} "
                f"| {item.error:+.1%} | {item.goal:.0%} |"
            )
    return int(any(abs(item.error) > item.goal for item in checks))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
