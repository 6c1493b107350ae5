"""The watching suite: the cost of `tf-sparse-ps top` and of scraped metrics for a job of two ranks.

The requirement: `top`, which prints a view each second, and an endpoint of Prometheus that is scraped each second, cost
the job at most 1 % of its samples/s.

In many short turns of one job, nobody watches it ("unwatched"), `top --plain --every 1` runs ("top"), or the endpoint
of `tf-sparse-ps run --metrics-port` is scraped each second ("endpoint"). `top` is stopped and continued by signals, so
that its start is not measured. The ratio of a turn is to the mean of the unwatched turns before and after it.

On a machine that does other work, samples/s of short turns differ by more than the cost. So the suite also reports the
processor time that each of them takes, in percent of one processor. The two ranks have two processors for themselves:
what takes 1 % of one takes 0.5 % of theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks import harness
from benchmarks.watching_job import DIM, FIELDS, QUICK_ROWS, ROWS
from tf_sparse_ps.node import rank_counters

_RANKS = 2
_TURNS = 3  # of each way, for each block
_TURN_S, _QUICK_S = 5.0, 1.0  # `top` reads PSS every 5 s
_EVERY_S = 1.0
_READY_S, _END_S, _POLL_S = 300.0, 60.0, 0.05
_UNWATCHED, _TOP, _ENDPOINT = "unwatched", "top", "endpoint"
_TICK = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Turn:
    """A turn.

    Attributes:
      way: How the job was watched.
      samples_per_s: The speed of the job.
      seconds: The length of the turn.
      processor_s: The processor time of the process that watches: `top`, or the launcher.
    """

    way: str
    samples_per_s: float
    seconds: float
    processor_s: float


def run(options: harness.Options) -> list[harness.Result]:
    """Measures samples/s and processor time, in turns."""
    seconds = _QUICK_S if options.quick else _TURN_S
    number = options.blocks if options.quick else options.blocks * _TURNS
    turns: list[Turn] = []
    with _folder() as folder, _job(folder, options) as (group, launcher, scrape), _top(folder) as top:
        watchers = {_TOP: top, _ENDPOINT: launcher}
        with tqdm(total=2 * len(watchers) * number + 1, desc="watching", unit=" turns", delay=2, disable=None) as bar:
            for k in range(number):
                for way in watchers if k % 2 == 0 else reversed(watchers):
                    for each in (_UNWATCHED, way):
                        turns.append(_measure(each, group, watchers, scrape, seconds))
                        bar.update()
            turns.append(_measure(_UNWATCHED, group, watchers, scrape, seconds))
            bar.update()
    rows = QUICK_ROWS if options.quick else ROWS
    return report(f"{_RANKS} ranks, {rows:,} x {DIM}, {len(turns)} turns of {seconds:g} s", turns)


def report(case: str, turns: Sequence[Turn]) -> list[harness.Result]:
    """Returns the results of turns. Unwatched turns surround every other one."""
    ways = (_UNWATCHED, _TOP, _ENDPOINT)
    speeds = {way: [turn.samples_per_s for turn in turns if turn.way == way] for way in ways}
    results = harness.summarize("watching", f"samples/s, {case}", speeds, peer=_UNWATCHED, unit="samples/s")
    kept: dict[str, list[float]] = {way: [] for way in ways[1:]}
    for before, turn, after in zip(turns, turns[1:], turns[2:], strict=False):
        if turn.way in kept:
            kept[turn.way].append(2e2 * turn.samples_per_s / (before.samples_per_s + after.samples_per_s))
    case = "samples/s, of unwatched ones before and after; quartiles"
    for result in harness.summarize("watching", case, kept, peer=None, unit="%"):
        low, high = np.quantile(result.blocks, [0.25, 0.75]).tolist()
        results.append(dataclasses.replace(result, low=low, high=high))
    for way in ways[1:]:
        own = [turn for turn in turns if turn.way == way]
        share = 1e2 * sum(turn.processor_s for turn in own) / sum(turn.seconds for turn in own)
        blocks = [1e2 * turn.processor_s / turn.seconds for turn in own]
        case = f"processor time of {'the launcher' if way == _ENDPOINT else way}, of one processor"
        # The mean, because the kernel tells processor time in ticks.
        results.append(harness.Result("watching", case, way, share, min(blocks), max(blocks), "%", None, blocks=blocks))
    return results


def _measure(way: str, group: str, watchers: Mapping[str, int], scrape: Callable[[], None], seconds: float) -> Turn:
    if way == _TOP:
        os.kill(watchers[_TOP], signal.SIGCONT)
    watcher = watchers.get(way)
    used = 0.0 if watcher is None else _processor_s(watcher)
    before, began = rank_counters.read(group), time.monotonic()
    due = began + _EVERY_S / 2
    while due < began + seconds:
        time.sleep(due - time.monotonic())
        if way == _ENDPOINT:
            scrape()
        due += _EVERY_S
    time.sleep(max(began + seconds - time.monotonic(), 0.0))
    after, took = rank_counters.read(group), time.monotonic() - began
    used = 0.0 if watcher is None else _processor_s(watcher) - used
    if way == _TOP:
        os.kill(watchers[_TOP], signal.SIGSTOP)
    speed = sum(
        (last.counters["ids_trained"] - first.counters["ids_trained"]) / FIELDS / (last.updated - first.updated)
        for first, last in zip(before, after, strict=True)
    )
    return Turn(way, speed, took, used)


def _processor_s(pid: int) -> float:
    """Returns the processor time of a process so far, with that of its threads that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"tsps-watching-{os.getpid()}-", dir="/dev/shm") as folder:
        yield Path(folder)


def _environment(folder: Path) -> dict[str, str]:
    root = str(Path(__file__).absolute().parents[1])
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "2", "TFSPS_DIR": str(folder / "tables")}
    return {name: value for name, value in os.environ.items() if name != "TFSPS_JOB"} | environment


@contextlib.contextmanager
def _job(folder: Path, options: harness.Options) -> Iterator[tuple[str, int, Callable[[], None]]]:
    """Starts the job. Yields the path of its group, the launcher's pid, and a function that scrapes its metrics."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = [sys.executable, "-m", "tf_sparse_ps", "run", "-np", str(_RANKS), "--metrics-port", str(port)]
    program = [sys.executable, "-m", "benchmarks.watching_job", "--folder", str(folder)]
    program += ["--threads", str(max(1, options.threads // _RANKS)), *(["--quick"] if options.quick else [])]
    log = (folder / "log").open("w")
    process = subprocess.Popen([*launcher, *program], env=_environment(folder), stdout=log, stderr=log)

    def scrape() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            if b"tsps_samples_trained_total{" not in response.read():
                raise RuntimeError("the endpoint has no samples of the job")

    try:
        until = time.monotonic() + _READY_S
        while not (folder / "ready.json").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the job did not start. It printed:\n{(folder / 'log').read_text()[-4000:]}")
            time.sleep(_POLL_S)
        yield json.loads((folder / "ready.json").read_text())["group"], process.pid, scrape
        (folder / "stop").touch()
        if process.wait(_END_S) != 0:
            raise RuntimeError(f"the job failed. It printed:\n{(folder / 'log').read_text()[-4000:]}")
    finally:
        process.terminate()
        process.wait()
        log.close()


@contextlib.contextmanager
def _top(folder: Path) -> Iterator[int]:
    """Starts `top`, and stops it after its first view. Yields its pid."""
    path = folder / "top"
    command = [sys.executable, "-m", "tf_sparse_ps", "top", "--plain", "--every", str(_EVERY_S)]
    with path.open("w") as out:
        process = subprocess.Popen(command, env=_environment(folder), stdout=out)
    try:
        until = time.monotonic() + _READY_S
        while "samples" not in path.read_text():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"top shows no samples of the job:\n{path.read_text()[-4000:]}")
            time.sleep(_POLL_S)
        process.send_signal(signal.SIGSTOP)
        yield process.pid
    finally:
        process.kill()
        process.wait()
