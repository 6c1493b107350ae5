"""The tiers suite: a table that does not fit in its memory, against the same table in memory and in a mapped file.

The table has 20 million rows of 16 floats with Adagrad, 2.5 GiB, and `memory="1GiB"` for its part in memory. A step
looks up and trains 106,496 Zipf-distributed ids. One thread that is busy for 20 or 50 ms stands for the rest of a
model. Jobs take turns:

    memory        all rows in memory
    mapped        the same, but the table's files are on the disk, and the kernel does not read ahead
    on demand     `tsps.Tiered`
    ahead K       `tsps.Tiered` and `tsps.lookahead` with passes of K batches
    with room     `tsps.Tiered`, with `memory` for all rows: the cost where no row has to be on the disk

The mapped job and the tiered one have a memory limit: 1 GiB, plus what the tiered job takes in addition to its table.
The suite measures the latter with a tiered job that has memory for all rows and begins empty. The limit needs root and
control groups. Where these are missing, the suite runs only the tiered job and the one in memory.

Comparisons with another tree (`--against`) have the tiered job alone, with fewer passes. `--long` runs another case:
see `benchmarks.tiers_long`.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import tf_sparse_ps
from benchmarks import disk_rates, harness, memory_limit, tiers_long
from benchmarks.job_sizes import EXPONENT

_PACKAGE = Path(tf_sparse_ps.__file__).absolute().parents[1]
_GIB = 1 << 30
_PER_FILE = 64  # batches
_LEAST_STEPS = 64  # the least number of timed steps in a block
_MAPPED_STEPS = 12
_BYTES_WITH_ROOM = 300  # per row: 198 and 12 bytes in memory, and a sixth of all memory holds rows that are being read
_SETTLE = 512  # batches before the first block, after which the store knows the frequent rows


@dataclasses.dataclass(frozen=True)
class _Sizes:
    rows: int
    batch: int
    memory: int
    passes: Sequence[int]
    compute_s: Sequence[float]
    settle: int
    spare: int = 0  # bytes above the limit, because the store keeps a part of a small limit free


_FULL = _Sizes(20_000_000, 106_496, _GIB, (0, 8, 32, 64), (0.02, 0.05), _SETTLE)
_QUICK = _Sizes(600_000, 4096, 64 << 20, (0, 8), (0.005,), 8, 64 << 20)
_AGAINST_PASSES, _AGAINST_COMPUTE_S = (0, 32), (0.02,)  # three processes have a table, and all of them take turns


def run(options: harness.Options) -> list[harness.Result]:
    """Measures times of steps, their reads from the disk, and the disk's own rates."""
    if options.long:
        return tiers_long.run(options)
    sizes = _QUICK if options.quick else _FULL
    if options.turns:
        return _in_turns(sizes, options)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tsps-tiers-", dir="/var/tmp")))
        rates = disk_rates.measure(folder, quick=options.quick)
        batches = _Batches(folder, sizes)
        jobs: dict[str, _Job] = {}
        limit = _limit(folder, sizes, options.threads, batches)
        for storage in ("memory", "tiered", "mapped") if limit else ("memory", "tiered"):
            job = _Job(folder, storage, sizes, options.threads, limit=limit if storage != "memory" else None)
            jobs[storage] = stack.enter_context(job)
        jobs["with room"] = stack.enter_context(
            _Job(folder, "tiered", sizes, options.threads, limit=None, memory=sizes.rows * _BYTES_WITH_ROOM)
        )
        answers = _take_turns(jobs, sizes, batches, options)
        peaks = {storage: jobs[storage].peak for storage in jobs}
    return [*_disk(rates), *_report(answers, sizes), *_memory(peaks, limit, sizes)]


def _in_turns(sizes: _Sizes, options: harness.Options) -> list[harness.Result]:
    """Measures the tiered job alone, in a comparison with another tree."""
    if not options.quick:
        sizes = dataclasses.replace(sizes, passes=_AGAINST_PASSES, compute_s=_AGAINST_COMPUTE_S)
    with tempfile.TemporaryDirectory(prefix="tsps-tiers-", dir="/var/tmp") as name:
        folder = Path(name)
        with _Job(folder, "tiered", sizes, options.threads, limit=None) as job:
            answers = _take_turns({"tiered": job}, sizes, _Batches(folder, sizes), options)
    # Other figures may be zero, of which there is no ratio.
    return [result for result in _report(answers, sizes) if result.case.startswith("step, ")]


class _Batches:
    """Files of batches, each of which is handed out once."""

    def __init__(self, folder: Path, sizes: _Sizes) -> None:
        self._folder, self._sizes, self._made = folder, sizes, 0

    def take(self, batches: int) -> list[str]:
        """Returns enough files for a number of batches."""
        return [self._make() for _ in range(-(-batches // _PER_FILE))]

    def _make(self) -> str:
        """Makes a file with int32[_PER_FILE, batch] ids."""
        rows, exponent = self._sizes.rows, 1 - EXPONENT
        draw = np.random.default_rng(self._made).random((_PER_FILE, self._sizes.batch))
        ranks = (draw * (rows**exponent - 1) + 1) ** (1 / exponent) - 1
        ids = np.minimum(ranks.astype(np.int64), rows - 1) * 2654435761 % rows
        path = self._folder / f"ids-{self._made}"
        ids.astype(np.int32).tofile(path)
        self._made += 1
        return str(path)


class _Job:
    """A process of `tier_job`."""

    def __init__(
        self,
        folder: Path,
        storage: str,
        sizes: _Sizes,
        threads: int,
        *,
        limit: int | None,
        empty: bool = False,
        memory: int = 0,
    ) -> None:
        self._command = [sys.executable, "-m", "benchmarks.tier_job", "--storage", storage, "--rows", str(sizes.rows)]
        memory = memory or sizes.memory * (2 if empty else 1)
        self._command += ["--folder", str(folder / "disk"), "--memory", str(memory), "--threads", str(threads)]
        self._command += ["--batch", str(sizes.batch), *(["--empty"] if empty else [])]
        self._storage, self._limit, self._watched = storage, limit, empty or limit is not None
        self._stack = contextlib.ExitStack()
        self._log = folder / f"{storage}-{memory}.log"
        self._group: memory_limit.Group | None = None

    def __enter__(self) -> _Job:
        command = self._command
        if self._watched:
            self._group = self._stack.enter_context(memory_limit.group(self._storage))
            if self._limit:
                self._group.limit(self._limit)
            command = self._group.command(command)
        environment = os.environ | {"PYTHONPATH": f"{_PACKAGE}{os.pathsep}{Path(__file__).absolute().parents[1]}"}
        log = self._stack.enter_context(self._log.open("w"))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=_PACKAGE
        )
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=60)
        self._process.kill()
        self._process.wait()
        self._stack.close()

    @property
    def peak(self) -> int:
        """The most bytes of memory so far; 0: memory is not watched."""
        return self._group.peak if self._group else 0

    def __call__(self, **command: Any) -> dict[str, Any]:
        """Sends a command to `tier_job`; returns the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise RuntimeError(f"the job {self._storage} ended with {status}:\n{self._log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _limit(folder: Path, sizes: _Sizes, threads: int, batches: _Batches) -> int | None:
    """Returns the memory limit: what the tiered job takes in addition to its table, and what the table may take."""
    longest = max(sizes.passes)
    try:
        with _Job(folder, "tiered", sizes, threads, limit=None, empty=True) as job:
            files = batches.take(3 * longest)
            answer = job(files=files, ahead=longest, compute_s=sizes.compute_s[0], skip=0, steps=3 * longest)
            peak = job.peak - answer["table_bytes"]
    except OSError as error:
        print(f"no memory limit, and no mapped file: {error}", flush=True)
        return None
    return peak + sizes.memory + sizes.spare


def _take_turns(
    jobs: Mapping[str, _Job], sizes: _Sizes, batches: _Batches, options: harness.Options
) -> dict[tuple[str, float], list[dict[str, Any]]]:
    """Returns the jobs' answers, by variant and computing time."""
    variants = {"memory": ("memory", 0), "mapped": ("mapped", 0)}
    variants["with room"] = ("with room", 0)
    variants |= {f"ahead {k}" if k else "on demand": ("tiered", k) for k in sizes.passes}
    variants = {name: variant for name, variant in variants.items() if variant[0] in jobs}
    jobs["tiered"](files=batches.take(sizes.settle), ahead=sizes.passes[-1], compute_s=0.0, skip=0, steps=sizes.settle)
    answers_by_case: dict[tuple[str, float], list[dict[str, Any]]] = {}
    total = options.blocks * len(variants) * len(sizes.compute_s)
    with tqdm(total=total, desc="tiers", unit=" blocks", delay=2, disable=None) as bar:
        for turn in range(options.blocks):
            if options.turns:
                options.turns.next()
            for compute_s in sizes.compute_s:
                for name in variants if turn % 2 == 0 else reversed(variants):
                    storage, ahead = variants[name]
                    steps = _MAPPED_STEPS if storage == "mapped" else max(_LEAST_STEPS, 3 * ahead)
                    skip = 4 if ahead == 0 else 2 * ahead
                    files = batches.take(skip + steps)
                    answer = jobs[storage](files=files, ahead=ahead, compute_s=compute_s, skip=skip, steps=steps)
                    for file in files:
                        Path(file).unlink()
                    answers_by_case.setdefault((name, compute_s), []).append(answer)
                    bar.update()
    return answers_by_case


def _report(
    answers_by_case: Mapping[tuple[str, float], Sequence[Mapping[str, Any]]], sizes: _Sizes
) -> list[harness.Result]:
    label = f"{sizes.rows:,} rows, {sizes.memory / _GIB:.2g} GiB"
    results = []
    for compute_s in sizes.compute_s:
        blocks = {name: answers for (name, seconds), answers in answers_by_case.items() if seconds == compute_s}
        times = {
            name: [statistics.fmean(answer["times"]) * 1e3 for answer in answers] for name, answers in blocks.items()
        }
        case = f"step, {label}, {compute_s * 1e3:.0f} ms computing"
        results += harness.summarize("tiers", case, times, peer="memory" if "memory" in times else None, unit="ms")
        if "mapped" in times:
            results += harness.summarize("tiers", case + ", against mapped", times, peer="mapped", unit="ms")
        tiered = {name: answers for name, answers in blocks.items() if name not in ("memory", "mapped", "with room")}

        def each(figure: Any, answers: Mapping[str, Sequence[Mapping[str, Any]]] = tiered) -> dict[str, list[float]]:
            return {
                name: [figure(answer) for answer in answers_of_variant] for name, answers_of_variant in answers.items()
            }

        for figure, values, unit in (
            ("rows read per step", each(lambda answer: answer["read"] / len(answer["times"])), ""),
            ("of them late", each(lambda answer: answer["late"] / len(answer["times"])), ""),
            ("read from the disk", each(lambda answer: answer["disk_bytes"] / 1e6 / len(answer["times"])), "MB/step"),
            ("steps wait for rows", each(lambda answer: answer["waited_s"] * 1e3 / len(answer["times"])), "ms"),
            ("reading ahead", each(lambda answer: answer["staged_s"] * 1e3 / len(answer["times"])), "ms/step"),
            ("files of records / their live bytes", each(lambda answer: answer["file_share"]), ""),
        ):
            results += harness.summarize("tiers", f"{figure}, {compute_s * 1e3:.0f} ms", values, peer=None, unit=unit)
    return results


def _memory(peaks: Mapping[str, int], limit: int | None, sizes: _Sizes) -> list[harness.Result]:
    figures = {f"{storage}, peak": peak for storage, peak in peaks.items() if peak}
    figures |= {"limit": limit} if limit else {}
    return [
        harness.Result("tiers", f"memory, table of {sizes.rows:,} rows", name, mib, mib, mib, "MiB", None)
        for name, mib in ((name, number / 2**20) for name, number in figures.items())
    ]


def _disk(rates: Mapping[str, tuple[float, str]]) -> Iterator[harness.Result]:
    for name, (value, unit) in rates.items():
        yield harness.Result("tiers", "the disk", name, value, value, value, unit, None)
