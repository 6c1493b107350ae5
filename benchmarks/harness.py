"""Measures variants of the same work in interleaved blocks, and reports the figures.

Variants take turns block by block, in alternating order, so that whatever else the machine does affects all of them. A
figure is the median of the blocks' medians. The report also has the lowest and the highest block.

Rule for suites: the input of a step is an argument of its tf.function and changes from call to call (`Cycle`).
Otherwise Grappler folds constants, even through Horovod's ops, and caches flatter a batch that never changes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.turns import Turns

T = TypeVar("T")
LEARNING_RATE = 0.01  # of every library's optimizer


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The options that the command line sets for the suite `cluster`.

    Attributes:
        hosts: Numbers of emulated hosts, one case each.
        ranks_per_host: Numbers of ranks on each host, one case each.
        mbit_per_s: The rate at which a host may send, and receive, in 10^6 bits per second.
        steps: The number of timed steps in each job.
        variants: The variants of the job, as `benchmarks.cluster.Variant.parse` takes them. The first one is the peer.
    """

    hosts: tuple[int, ...] = (2,)
    ranks_per_host: tuple[int, ...] = (2,)
    mbit_per_s: float = 200.0
    steps: int = 16
    variants: tuple[str, ...] = ("flat", "hierarchical", "hierarchical-bfloat16", "replicated", "dense-only")


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that the command line sets.

    Attributes:
        threads: The number of intra-op threads of every variant.
        blocks: The number of turns of each variant.
        quick: Whether to use small sizes, which check that the suite runs and measure nothing.
        peer_python: The interpreter for the replicated jobs of the suites `ranks` and `cluster`; None: this one.
        peers: Whether the suite `jobs` trains with other frameworks, too.
        engines: Whether the suite `ranks` compares the libraries that connect our ranks.
        long: Whether the suite `tiers` trains one table for 15 minutes, or `serving` looks up 10 million rows.
        cluster: The options of the suite `cluster`.
        movielens: The folder of MovieLens files for the suite `served_rows`; None: generated preferences.
        turns: Waits for this process's turn before each block; None: no other process measures.
    """

    threads: int = 2
    blocks: int = 7
    quick: bool = False
    peer_python: str | None = None
    peers: bool = False
    engines: bool = False
    long: bool = False
    cluster: Cluster = dataclasses.field(default_factory=Cluster)
    movielens: str | None = None
    turns: Turns | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """One variant of one case.

    Attributes:
        ratio: The ratio to the peer's median in the same run; None for the peer.
        parameters: Describes the case, for programs that read the results.
        blocks: The figures whose median this is, in the order of their turns; empty if there are no blocks.
    """

    suite: str
    case: str
    variant: str
    median: float
    low: float
    high: float
    unit: str
    ratio: float | None
    parameters: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    blocks: Sequence[float] = ()


class Cycle(Generic[T]):
    """Hands out prepared batches in turn."""

    def __init__(self, batches: Sequence[T]) -> None:
        self._batches = batches
        self._next = 0

    def __call__(self) -> T:
        """Returns the next batch."""
        batch = self._batches[self._next % len(self._batches)]
        self._next += 1
        return batch


def compare(
    suite: str,
    case: str,
    variants: Mapping[str, Callable[[], Any]],
    *,
    peer: str,
    options: Options,
    calls: int = 5,
    warmup: int = 3,
    foreign: Sequence[str] | None = None,
) -> list[Result]:
    """Times calls of the variants in milliseconds, in interleaved blocks.

    Args:
        suite: The name of the suite.
        case: Describes the work, with its sizes.
        variants: Each variant's name, and a function that does the work once and returns when it is done.
        peer: The variant that the others are divided by.
        options: The options of the command line.
        calls: The number of calls per block.
        warmup: The number of calls of each variant before the first block.
        foreign: Variants without tf_sparse_ps. They are left out in comparisons with another tree; None: `peer`.
    """
    if options.turns:
        left_out = (peer,) if foreign is None else foreign
        variants = {name: work for name, work in variants.items() if name not in left_out}
    for work in variants.values():
        for _ in range(warmup):
            work()
    blocks: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    with _no_garbage_collection():
        for turn in range(options.blocks):
            if options.turns:
                options.turns.next()
            for name in order if turn % 2 == 0 else reversed(order):
                times = []
                for _ in range(calls):
                    began = time.perf_counter()
                    variants[name]()
                    times.append((time.perf_counter() - began) * 1e3)
                blocks[name].append(statistics.median(times))
    return summarize(suite, case, blocks, peer=peer if peer in blocks else None, unit="ms")


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turns garbage collection off, as timeit does: a collection in a call would walk all objects of the process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def summarize(
    suite: str, case: str, blocks: Mapping[str, Sequence[float]], *, peer: str | None, unit: str
) -> list[Result]:
    """Returns results from figures per block; ratios are to the median of `peer`."""
    base = statistics.median(blocks[peer]) if peer else None
    results = []
    for name, figures in blocks.items():
        median = statistics.median(figures)
        ratio = None if not base or name == peer else median / base
        low, high = min(figures), max(figures)
        results.append(Result(suite, case, name, median, low, high, unit, ratio, blocks=tuple(figures)))
    return results


def rates(timed: Sequence[Result], count: int, *, peer: str, unit: str) -> list[Result]:
    """Returns the results of `compare` as rates.

    Args:
        timed: Results of one case, in milliseconds.
        count: The number of things that a call processes.
        peer: The variant that the others are divided by.
        unit: The unit of the rates, say "ids/s".
    """
    blocks = {result.variant: [count / ms * 1e3 for ms in result.blocks] for result in timed}
    return summarize(timed[0].suite, timed[0].case, blocks, peer=peer if peer in blocks else None, unit=unit)


def zipf_ids(rows: int, count: int, batches: int, *, exponent: float = 1.05, seed: int = 0) -> list[NDArray[np.int64]]:
    """Returns batches of `count` Zipf-distributed ids of [0, rows). The frequent ids do not depend on `seed`."""
    draw = np.random.default_rng(seed)
    cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    scatter = np.random.default_rng(rows).permutation(rows)
    return [
        scatter[np.minimum(np.searchsorted(cumulative, draw.random(count) * cumulative[-1]), rows - 1)]
        for _ in range(batches)
    ]


def feature_ids(features: int, count: int, rows: int, batches: int) -> list[NDArray[np.int64]]:
    """Returns batches of int64[features, count]. Each feature has its own ids, which `zipf_ids` draws."""
    columns = [zipf_ids(rows, count, batches, seed=number) for number in range(features)]
    return [np.stack([column[k] for column in columns]) for k in range(batches)]


def normal_gradients(*shape: int) -> list[NDArray[np.float32]]:
    """Returns three different gradients of an output of a shape, as large as in training."""
    draw = np.random.default_rng(1)
    return [draw.normal(0, 1e-3, shape).astype(np.float32) for _ in range(3)]


def anonymous_bytes() -> int:
    """Returns the bytes of memory of this process that are no files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def quartile(blocks: Sequence[float], unit: str) -> float:
    """Returns the better quartile: the lower one of times and sizes, the upper one of rates (units that end in /s)."""
    if len(blocks) == 1:
        return blocks[0]
    return statistics.quantiles(blocks, n=4, method="inclusive")[2 if is_rate(unit) else 0]


def is_rate(unit: str) -> bool:
    """Whether a larger figure of the unit is better."""
    return unit.endswith("/s")


def job_options(description: str | None) -> argparse.Namespace:
    """Parses the options of a job that a suite starts (folder, threads, quick), and sets its numbers of threads."""
    import tensorflow as tf  # not every suite needs it

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    return options


def prepare(threads: int) -> dict[str, str]:
    """Imports TensorFlow and sets its numbers of threads; returns the installed versions, for the report."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return {"tensorflow": tf.__version__, "keras": keras.__version__, "threads": str(threads)}


def hardware() -> dict[str, str]:
    """Describes the machine that measures."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.2f} before the run",
    }


def job_figures(command: Sequence[str], out: Path, timeout: float | None = None) -> Any:
    """Runs a job with the checkout's modules. Returns what it writes to `out`, a JSON file.

    Raises:
        RuntimeError: The job failed. The text has the end of what it printed.
        subprocess.TimeoutExpired: The job took more than `timeout` seconds.
    """
    root = Path(__file__).absolute().parents[1]  # links are not followed: see benchmarks.against
    environment = os.environ | {"PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(out.read_text())


def table(results: Sequence[Result]) -> str:
    """Formats the results as Markdown."""
    lines = ["| suite | case | variant | median | lowest - highest | ratio to peer |", "|---|---|---|---:|---|---:|"]
    for result in results:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        lines.append(
            f"| {result.suite} | {result.case} | {result.variant} | {number(result.median)} {result.unit} "
            f"| {number(result.low)} - {number(result.high)} | {ratio} |"
        )
    return "\n".join(lines)


def save(path: Path, machine: Mapping[str, str], options: Options, results: Sequence[Any]) -> None:
    """Writes a JSON file of the machine, the options and the results, which are dataclasses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "hardware": dict(machine),
        "options": dataclasses.asdict(dataclasses.replace(options, turns=None)),
        "results": [dataclasses.asdict(result) for result in results],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def number(value: float) -> str:
    """Formats a figure for a report, to three digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
