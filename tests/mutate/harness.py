"""Mutates files, runs processes on them, and classifies the outcomes."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable

from tqdm import tqdm

from tests.mutate.mutations import Mutation

_BATCH = 200  # mutations per process, if it survives them
_HANG_S = 90  # a read that never succeeds is an error after 30 s
# From worst to best. The class of a mutation is the worst of its phases.
CLASSES = ("crash", "hang", "unclean", "wrong", "found", "refused", "harmless")
FAILURES = CLASSES[:3]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a mutation: one of the `CLASSES`, and the reason in words."""

    mutation: Mutation
    verdict: str
    words: str


def run(numbers: Iterable[int], seed: int, jobs: int, *, only_tiered: bool = False) -> list[Outcome]:
    """Tries mutations.

    Args:
      numbers: The numbers of the mutations.
      seed: The seed of all mutations.
      jobs: The number of processes at a time.
      only_tiered: Whether to mutate only files of rows on disk.
    """
    todo = list(numbers)
    batches = [todo[start : start + _BATCH] for start in range(0, len(todo), _BATCH)]
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory(prefix="tsps-mutate-", dir="/dev/shm") as folder,
        tqdm(total=len(todo), desc="mutations", delay=2, disable=None) as bar,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):

        def try_batch(batch: list[int]) -> list[Outcome]:
            return _try_all(folder, seed, batch, ["--tiered"] if only_tiered else [], bar.update)

        for outcomes_of_batch in pool.map(try_batch, batches):
            outcomes += outcomes_of_batch
    return sorted(outcomes, key=lambda outcome: outcome.mutation.number)


def _try_all(
    folder: str, seed: int, numbers: list[int], options: list[str], done: Callable[[int], object]
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while len(outcomes) < len(numbers):
        remaining = numbers[len(outcomes) :]
        with (
            tempfile.TemporaryDirectory(prefix="scratch-", dir=folder) as scratch,
            tempfile.TemporaryFile("w+") as errors,
        ):
            command = [sys.executable, "-m", "tests.mutate.processes", *options, scratch, seed, *remaining]
            with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=errors) as process:
                before = len(outcomes)
                fate = _follow(process, outcomes, done)
            errors.seek(0)
            if fate is None:
                continue
            mutation, verdict, words = fate
            if mutation is None:
                raise AssertionError(f"the process failed between mutations: {words}\n{errors.read()[-3000:]}")
            outcomes.append(Outcome(mutation, verdict, words))
            done(len(outcomes) - before)
    return outcomes


def _follow(
    process: subprocess.Popen[bytes], outcomes: list[Outcome], done: Callable[[int], object]
) -> tuple[Mutation | None, str, str] | None:
    """Reads the process's reports until it ends. Returns the mutation, class and reason if it crashed or hung."""
    assert process.stdout is not None
    at: Mutation | None = None
    buffer = b""
    while True:
        if not select.select([process.stdout], [], [], _HANG_S)[0]:
            process.kill()
            process.wait()
            return at, "hang", f"no report for {_HANG_S} s"
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            break
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "begun" in report:
                report.pop("begun")
                at = Mutation(**report)
                continue
            assert at is not None
            worst = min(range(len(report["verdicts"])), key=lambda i: CLASSES.index(report["verdicts"][i]))
            outcomes.append(Outcome(at, report["verdicts"][worst], report["words"][worst]))
            done(1)
            at = None
    code = process.wait()
    if code == 0:
        return None
    return at, "crash", signal.Signals(-code).name if code < 0 else f"exit status {code}"


def place_of(outcome: Outcome) -> str:
    """Returns the file and the field of a mutation."""
    return f"{outcome.mutation.file.rpartition('/')[2]}: {outcome.mutation.field}"


def table_of(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> str:
    """Returns a table with the number of outcomes of each class, by `key`."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for outcome in outcomes:
        counts[key(outcome)][outcome.verdict] += 1
    width = max((len(name) for name in counts), default=0)
    lines = [" " * width + "".join(f"{name:>10}" for name in CLASSES)]
    for name in sorted(counts):
        lines.append(f"{name:<{width}}" + "".join(f"{counts[name][class_name] or '-':>10}" for class_name in CLASSES))
    return "\n".join(lines)
