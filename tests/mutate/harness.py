"""Mutates files, lets processes work with them, and sorts what comes of it."""

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

_BATCH = 200  # mutations of one process, if it survives them
_HANG_S = 90  # a read that never succeeds is an error after 30 s
# From worst to best. A mutation counts as the worst that a phase came to.
CLASSES = ("crash", "hang", "unclean", "wrong", "found", "refused", "harmless")
FAILURES = CLASSES[:3]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a mutation: of the `CLASSES` one, and why, in words."""

    mutation: Mutation
    verdict: str
    words: str


def run(numbers: Iterable[int], seed: int, jobs: int, *, only_tiered: bool = False) -> list[Outcome]:
    """Tries these mutations.

    Args:
      numbers: Of the mutations.
      seed: Of all of them.
      jobs: Processes at a time.
      only_tiered: All of them in files of rows on disk.
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

        for found in pool.map(try_batch, batches):
            outcomes += found
    return sorted(outcomes, key=lambda outcome: outcome.mutation.number)


def _try_all(
    folder: str, seed: int, numbers: list[int], options: list[str], done: Callable[[int], object]
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while len(outcomes) < len(numbers):
        left = numbers[len(outcomes) :]
        with (
            tempfile.TemporaryDirectory(prefix="scratch-", dir=folder) as scratch,
            tempfile.TemporaryFile("w+") as errors,
        ):
            command = [sys.executable, "-m", "tests.mutate.processes", *options, scratch, seed, *left]
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
    """Reads what the process says until it ends. Returns what it was at when it crashed or hung."""
    assert process.stdout is not None
    at: Mutation | None = None
    buffer = b""
    while True:
        if not select.select([process.stdout], [], [], _HANG_S)[0]:
            process.kill()
            process.wait()
            return at, "hang", f"nothing came of it for {_HANG_S} s"
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            break
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "begun" in said:
                said.pop("begun")
                at = Mutation(**said)
                continue
            assert at is not None
            worst = min(range(len(said["verdicts"])), key=lambda i: CLASSES.index(said["verdicts"][i]))
            outcomes.append(Outcome(at, said["verdicts"][worst], said["words"][worst]))
            done(1)
            at = None
    code = process.wait()
    if code == 0:
        return None
    return at, "crash", signal.Signals(-code).name if code < 0 else f"exit status {code}"


def place_of(outcome: Outcome) -> str:
    """File and field."""
    return f"{outcome.mutation.file.rpartition('/')[2]}: {outcome.mutation.field}"


def table_of(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> str:
    """How many of each class, by `key`."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for outcome in outcomes:
        counts[key(outcome)][outcome.verdict] += 1
    width = max((len(name) for name in counts), default=0)
    lines = [" " * width + "".join(f"{name:>10}" for name in CLASSES)]
    for name in sorted(counts):
        lines.append(f"{name:<{width}}" + "".join(f"{counts[name][one] or '-':>10}" for one in CLASSES))
    return "\n".join(lines)
