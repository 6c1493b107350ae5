"""The tiers suite: a table of which memory has room for a part, beside the same in memory and in a mapped file.

20 million rows of 16 floats with Adagrad, 2.5 GiB, and `memory="1GiB"` for all that is in memory of it. A step looks up
and trains 106,496 Zipf-distributed ids; what else a model computes is one thread that is busy for 20 or 50 ms. Jobs
take turns:

    memory        all rows in memory
    mapped        the same, but the table's files are on the disk, and the kernel is told not to read ahead
    on demand     `tsps.Tiered`
    ahead K       `tsps.Tiered` and `tsps.lookahead` with passes of K batches
    with room     `tsps.Tiered`, `memory` for all rows: what it costs where nothing has to be on the disk

The mapped job and the tiered one have a memory limit: what the tiered job takes beside its table, measured with one
that has room for all rows and begins empty, and 1 GiB. That needs root, and control groups. Where they are missing,
only the tiered job runs beside the one in memory.
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
from benchmarks import disk_rates, harness, memory_limit
from benchmarks.job_sizes import EXPONENT

_PACKAGE = Path(tf_sparse_ps.__file__).absolute().parents[1]
_GIB = 1 << 30
_PER_FILE = 64  # batches
_LEAST_STEPS = 64  # that are timed in a block
_MAPPED_STEPS = 12
_BYTES_WITH_ROOM = 300  # a row in memory takes 198 and 12, and a sixth of all is for what is read
_SETTLE = 512  # batches before the first block: which rows are frequent shows


@dataclasses.dataclass(frozen=True)
class _Sizes:
    rows: int
    batch: int
    memory: int
    passes: Sequence[int]
    compute_s: Sequence[float]
    settle: int
    spare: int = 0  # bytes beside what the limit allows: of a small one the store keeps a part free


_FULL = _Sizes(20_000_000, 106_496, _GIB, (0, 8, 32, 64), (0.02, 0.05), _SETTLE)
_QUICK = _Sizes(600_000, 4096, 64 << 20, (0, 8), (0.005,), 8, 64 << 20)


def run(options: harness.Options) -> list[harness.Result]:
    """Times of steps, and what was read from the disk for them; the disk's own rates."""
    sizes = _QUICK if options.quick else _FULL
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
        found = _take_turns(jobs, sizes, batches, options.blocks)
        peaks = {storage: jobs[storage].peak for storage in jobs}
    return [*_disk(rates), *_report(found, sizes), *_memory(peaks, limit, sizes)]


class _Batches:
    """Files of batches, each of them handed out once."""

    def __init__(self, folder: Path, sizes: _Sizes) -> None:
        self._folder, self._sizes, self._made = folder, sizes, 0

    def take(self, batches: int) -> list[str]:
        """Enough files."""
        return [self._make() for _ in range(-(-batches // _PER_FILE))]

    def _make(self) -> str:
        """A file with int32[_PER_FILE, batch] ids."""
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
        """Bytes of memory; 0: not watched."""
        return self._group.peak if self._group else 0

    def __call__(self, **command: Any) -> dict[str, Any]:
        """Trains, as `tier_job` says."""
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
        found: dict[str, Any] = json.loads(line)
        return found


def _limit(folder: Path, sizes: _Sizes, threads: int, batches: _Batches) -> int | None:
    """What the tiered job takes beside its table, and what the table may take."""
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
    jobs: Mapping[str, _Job], sizes: _Sizes, batches: _Batches, blocks: int
) -> dict[tuple[str, float], list[dict[str, Any]]]:
    """What the jobs answered, by variant and computing time."""
    variants = {"memory": ("memory", 0), "mapped": ("mapped", 0)}
    variants["with room"] = ("with room", 0)
    variants |= {f"ahead {k}" if k else "on demand": ("tiered", k) for k in sizes.passes}
    variants = {name: one for name, one in variants.items() if one[0] in jobs}
    jobs["tiered"](files=batches.take(sizes.settle), ahead=sizes.passes[-1], compute_s=0.0, skip=0, steps=sizes.settle)
    found: dict[tuple[str, float], list[dict[str, Any]]] = {}
    total = blocks * len(variants) * len(sizes.compute_s)
    with tqdm(total=total, desc="tiers", unit=" blocks", delay=2, disable=None) as bar:
        for turn in range(blocks):
            for compute_s in sizes.compute_s:
                for name in variants if turn % 2 == 0 else reversed(variants):
                    storage, ahead = variants[name]
                    steps = _MAPPED_STEPS if storage == "mapped" else max(_LEAST_STEPS, 3 * ahead)
                    skip = 4 if ahead == 0 else 2 * ahead
                    files = batches.take(skip + steps)
                    answer = jobs[storage](files=files, ahead=ahead, compute_s=compute_s, skip=skip, steps=steps)
                    for file in files:
                        Path(file).unlink()
                    found.setdefault((name, compute_s), []).append(answer)
                    bar.update()
    return found


def _report(found: Mapping[tuple[str, float], Sequence[Mapping[str, Any]]], sizes: _Sizes) -> list[harness.Result]:
    what = f"{sizes.rows:,} rows, {sizes.memory / _GIB:.2g} GiB"
    results = []
    for compute_s in sizes.compute_s:
        blocks = {name: answers for (name, seconds), answers in found.items() if seconds == compute_s}
        times = {name: [statistics.fmean(one["times"]) * 1e3 for one in answers] for name, answers in blocks.items()}
        case = f"step, {what}, {compute_s * 1e3:.0f} ms computing"
        results += harness.summarize("tiers", case, times, peer="memory", unit="ms")
        if "mapped" in times:
            results += harness.summarize("tiers", case + ", beside mapped", times, peer="mapped", unit="ms")
        tiered = {name: answers for name, answers in blocks.items() if name not in ("memory", "mapped", "with room")}

        def each(figure: Any, answers: Mapping[str, Sequence[Mapping[str, Any]]] = tiered) -> dict[str, list[float]]:
            return {name: [figure(one) for one in of] for name, of in answers.items()}

        for figure, values, unit in (
            ("rows read per step", each(lambda one: one["read"] / len(one["times"])), ""),
            ("of them late", each(lambda one: one["late"] / len(one["times"])), ""),
            ("read from the disk", each(lambda one: one["disk_bytes"] / 1e6 / len(one["times"])), "MB/step"),
            ("steps wait for rows", each(lambda one: one["waited_s"] * 1e3 / len(one["times"])), "ms"),
            ("reading ahead", each(lambda one: one["staged_s"] * 1e3 / len(one["times"])), "ms/step"),
            ("files of records, of their live bytes", each(lambda one: one["file_share"]), ""),
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
