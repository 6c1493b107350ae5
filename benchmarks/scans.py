"""The scans suite: a process reads a whole table while a job trains it; the cost for the process, and for the job.

The requirement has three parts:

- For 60 s, an external process does `keys()`, `save()`, `verify()` and lookups of 200,000 keys in turn, while two ranks
  train. No operation fails, and each result is of one committed state.
- The job makes at least 0.95 of the steps that it makes while the same process does the same work on an idle copy of
  the table. Both cases have two cores, of which the process takes the same share.
- A lookup is blocked, or retries, for at most 20 ms at p99.

The ranks train nothing but the table, at full speed. Their gradients determine every row as of any step
(`scan_content`), and the external process checks everything that it reads. In turns, it works on the job's table, works
on the copy, and sleeps. The copy has a writer, too, which writes nothing: without a writer, lookups there would be
cheaper. Files are saved to shared memory, so that the time does not depend on the disk. In the report, "copy" and "job"
name the table on which the external process worked; "alone": it slept.

In the build of `make crash`, TFSPS_FAULT_OFF=scan_images keeps the writer from making images for scans. Then the suite
must fail:

    cd build/native/crash && TFSPS_FAULT_OFF=scan_images PYTHONPATH=CHECKOUT python -m benchmarks scans --quick
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import tf_sparse_ps
from benchmarks import harness, scan_content
from benchmarks.job_sizes import DIM
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table

_MEASURE_S = 60.0  # of all blocks
_QUICK_S = 1.0
_READY_S = 600.0
_END_S = 60.0
_POLL_S = 0.05
_TEXTS = 10  # the number of texts that an error shows
_PACKAGE = Path(tf_sparse_ps.__file__).absolute().parents[1]  # this checkout, or a variant of the build


class WrongState(RuntimeError):
    """A result is not of one committed state. The text describes it."""


def run(options: harness.Options) -> list[harness.Result]:
    """Measures steps per second, and times and errors of the external process.

    Raises:
        WrongState: A result is not of one committed state. The figures are printed first.
    """
    sizes = scan_content.QUICK if options.quick else scan_content.FULL
    seconds = (_QUICK_S if options.quick else _MEASURE_S) / options.blocks
    answers: dict[str, list[dict[str, Any]]] = {where: [] for where in ("alone", "copy", "job")}
    with _folder() as folder, contextlib.ExitStack() as stack:
        copy, rows_per_step = stack.enter_context(_idle_copy(folder, sizes))
        job = stack.enter_context(_job(folder, options))
        work = stack.enter_context(_reader(folder, job, copy, options))
        for where in ("copy", "job"):  # maps every page that the process uses
            work(where, 0.0)
        with tqdm(total=options.blocks * len(answers), desc="scans", unit=" blocks", delay=2, disable=None) as bar:
            for turn in range(options.blocks):
                for where in answers if turn % 2 == 0 else reversed(answers):
                    answers[where].append(work(where, seconds))
                    bar.update()
    results = report(f"{sizes.rows:,} x {DIM}, {rows_per_step:,.0f} rows per step", answers)
    wrong = [text for where in ("copy", "job") for answer in answers[where] for text in answer["wrong"]]
    if wrong:
        print(harness.table(results), flush=True)
        raise WrongState("\n".join([f"{len(wrong)} results are not of one committed state, such as", *wrong[:_TEXTS]]))
    return results


def report(table: str, answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[harness.Result]:
    """Returns results from those of `scan_reader.work` in the blocks of "alone", "copy" and "job"."""

    def summary(case: str, figure: str, blocks: Mapping[str, Sequence[float]], unit: str = "") -> list[harness.Result]:
        results = harness.summarize("scans", case, blocks, peer="copy", unit=unit)
        return [dataclasses.replace(result, parameters={"figure": figure, "table": table}) for result in results]

    def of_all(label: str, name: str, figure: str, values: Mapping[str, Sequence[float]]) -> list[harness.Result]:
        case = f"{label}, {figure} of {', '.join(str(len(times_ms)) for times_ms in values.values())}"
        results = summary(
            case, f"{name} {figure}", {where: [_FIGURES[figure](times_ms)] for where, times_ms in values.items()}, "ms"
        )
        extremes = [(min(times_ms), max(times_ms)) for times_ms in values.values()]
        return [
            dataclasses.replace(result, low=low, high=high)
            for result, (low, high) in zip(results, extremes, strict=True)
        ]

    steps = {where: [answer["steps"] / answer["seconds"] for answer in blocks] for where, blocks in answers.items()}
    results = summary(f"job, {table}", "steps", steps, "steps/s")
    per_step = {
        where: [answer["ranks_processor_s"] * 1e3 / answer["steps"] for answer in blocks]
        for where, blocks in answers.items()
    }
    results += summary("job, processor time of a step, both ranks", "rank processors", per_step, "ms")
    readers = {where: answers[where] for where in ("copy", "job")}
    for name in answers["job"][0]["times"]:
        rates = {
            where: [
                sum(answer["meanwhile"][name] for answer in blocks)
                / sum(sum(answer["times"][name]) for answer in blocks)
            ]
            for where, blocks in readers.items()
        }
        results += summary(f"job during {name}", f"steps during {name}", rates, "steps/s")
    shares = {
        where: [answer["processor_s"] / answer["seconds"] for answer in blocks] for where, blocks in readers.items()
    }
    results += summary("reader, processors that it uses", "processors", shares)
    for name in answers["job"][0]["times"]:
        times = {
            where: [s * 1e3 for answer in blocks for s in answer["times"][name]] for where, blocks in readers.items()
        }
        results += [result for figure in ("mean", "p99") for result in of_all(f"reader, {name}", name, figure, times)]
    blocked = {where: [s * 1e3 for answer in blocks for s in answer["blocked"]] for where, blocks in readers.items()}
    for figure in ("p50", "p99", "max"):
        waits = of_all("reader, lookup blocked or retrying", "blocked", figure, blocked)
        results += [dataclasses.replace(result, ratio=None) for result in waits]  # the peer waits next to nothing
    for kind, words in (("errors", "errors"), ("wrong", "results not of one committed state")):
        for where, blocks in readers.items():
            texts = [text for answer in blocks for text in answer[kind]]
            parameters = {"figure": kind, "table": table, "texts": "\n".join(texts[:_TEXTS])}
            n = float(len(texts))
            results.append(harness.Result("scans", f"reader, {words}", where, n, n, n, "", None, parameters))
    return results


_FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "p50": statistics.median,
    "p99": lambda values: float(np.percentile(values, 99)),
    "max": max,
}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"tsps-scans-{os.getpid()}-", dir="/dev/shm") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _idle_copy(folder: Path, sizes: scan_content.Sizes) -> Iterator[tuple[str, float]]:
    """Makes a table with the rows that the job's table has when training begins. This process is its writer.

    Yields:
        The path of the table, and the number of rows that a step of the job touches.
    """
    content = scan_content.Content(sizes)
    (folder / "copy").mkdir()
    config = TableConfig("table", DIM, initializer="zeros", optimizer=scan_content.RULE)
    with Table.create(folder / "copy" / "group" / "table", config) as table:
        for keys in np.array_split(np.arange(sizes.rows), 16):
            values = [np.repeat(column[:, None], DIM, axis=1) for column in content.rows(keys, 0)]
            table.assign(keys, values[0], values[1:])
        yield table.path, content.rows_per_step


@contextlib.contextmanager
def _job(folder: Path, options: harness.Options) -> Iterator[dict[str, Any]]:
    """Starts the ranks, and stops them afterwards. Yields what `scan_job` has written when training begins."""
    launcher = str(Path(sys.executable).with_name("horovodrun"))
    command = [launcher, "--gloo", "-np", "2", "-H", "localhost:2", sys.executable, "-m", "benchmarks.scan_job"]
    command += ["--folder", str(folder), "--threads", str(max(1, options.threads // 2))]
    command += ["--quick"] if options.quick else []
    environment = _environment() | {"TFSPS_DIR": str(folder / "tables"), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=_PACKAGE)
    try:
        ready, deadline = folder / "ready.json", time.monotonic() + _READY_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the job did not begin to train:\n{(folder / 'log').read_text()[-4000:]}")
            time.sleep(_POLL_S)
        yield json.loads(ready.read_text())
        (folder / "stop").touch()
        if process.wait(_END_S):
            raise RuntimeError(f"the job ended with {process.returncode}:\n{(folder / 'log').read_text()[-4000:]}")
    except BaseException:
        (folder / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        raise
    finally:
        process.terminate()  # horovodrun ends its ranks
        process.wait()


@contextlib.contextmanager
def _reader(
    folder: Path, job: Mapping[str, Any], copy: str, options: harness.Options
) -> Iterator[Callable[[str, float], dict[str, Any]]]:
    """Starts the external process, and kills it afterwards. Yields a function that calls `scan_reader.work` there."""
    command = [sys.executable, "-m", "benchmarks.scan_reader", "--folder", str(folder), "--copy", copy]
    command += ["--job", job["table"], "--filled", str(job["step"])]
    command += ["--pids", *map(str, job["pids"]), *(["--quick"] if options.quick else [])]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment(), cwd=_PACKAGE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    into, out = process.stdin, process.stdout

    def work(where: str, seconds: float) -> dict[str, Any]:
        into.write(f"{where} {seconds}\n")
        into.flush()
        line = out.readline()
        if not line:
            log = (folder / "log").read_text()[-4000:]
            raise RuntimeError(f"the external process ended with {process.wait()}. The job printed:\n{log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    try:
        yield work
    finally:
        process.kill()
        process.communicate()


def _environment() -> dict[str, str]:
    root = str(Path(__file__).absolute().parents[1])  # links are not followed: see benchmarks.against
    paths = [str(_PACKAGE), root, os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("TFSPS_JOB", None)
    return environment
