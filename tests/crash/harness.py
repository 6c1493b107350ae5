"""Kills a writer and a looker at random times while a reader and a scanner check. Each round has a group of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from tests.crash.content import Expectation, Group, disk_of
from tf_sparse_ps.errors import DamagedFileError
from tf_sparse_ps.table import Table

KILLS_PER_ROUND = 30  # then a new, small group, so that checking every row stays quick
_CHILD_TIMEOUT_S = 60
_KILLED_AS_IT_OPENS = 1 / 6  # the share of the writers


@dataclasses.dataclass
class Result:
    """The results of a run."""

    kills: int = 0
    mid_mutation: int = 0  # kills that left a mutation unfinished
    steps: int = 0
    reads: int = 0
    scans: int = 0
    rows_on_disk: int = 0  # the largest number at the end of a round
    files_removed: int = 0  # by compaction, the largest number of a round
    torn: list[str] = dataclasses.field(default_factory=list)  # faults found after a kill
    mixed: list[str] = dataclasses.field(default_factory=list)  # faults found by the reader or the scanner

    @property
    def violations(self) -> int:
        return len(self.torn) + len(self.mixed)


def run(kills: int, seed: int) -> Result:
    """Kills writers until `kills` are dead or a violation is found.

    With TFSPS_FAULT_OFF=undo, moves, seqlock or scan_images in the environment (and the build with fault points) the
    run is a control: it must find violations. The core reads that variable once, so a control is a process of its own.

    Args:
      kills: The number of kills.
      seed: The seed of the random times.
    """
    result = Result()
    rng = random.Random(seed)
    with tqdm(total=kills, desc="kills", unit="kill", delay=2, disable=None) as bar:
        while result.kills < kills and not result.violations:
            with tempfile.TemporaryDirectory(prefix="tsps-crash-", dir="/dev/shm") as folder:
                _round(Path(folder), min(KILLS_PER_ROUND, kills - result.kills), rng, result, bar)
    return result


def _round(folder: Path, kills: int, rng: random.Random, result: Result, bar: tqdm) -> None:
    path, untouched_path = folder / "group", folder / "untouched"
    untouched = Group.create(untouched_path)
    Group.create(path)  # closed at once: the writer process takes it over
    expectation = Expectation(untouched)
    observers = {role: _start(role, path, untouched_path) for role in ("reader", "scanner")}
    lookers = [_start("looker", path)]
    acknowledged = 0
    try:
        for _ in range(kills):
            acknowledged = _kill_a_writer(path, rng, acknowledged)
            if rng.random() < 1 / 3:  # in the middle of work that the writer leaves for all processes
                _kill(lookers.pop())
                lookers.append(_start("looker", path))
            result.kills += 1
            bar.update()
            wrong = _check(path, expectation, acknowledged, result)
            result.torn += wrong
            result.steps += acknowledged
            if wrong:
                break  # later violations would follow from this one
        for role, process in observers.items():
            _report(role, process, result)
        _look_at_the_disk(path, result)
    finally:
        for process in (*observers.values(), *lookers):
            _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def _look_at_the_disk(path: Path, result: Result) -> None:
    """Checks that rows went to disk and that compaction removed files; otherwise the round does not test them."""
    group = Group.open(path, "r")
    try:
        result.rows_on_disk = max(result.rows_on_disk, group.tables["far"].stats()["rows_on_disk"])
    finally:
        _close(group.tables)
    numbers = [int(file.name.split(".")[1]) for file in disk_of(path).rglob("records.*")]
    result.files_removed = max(result.files_removed, max(numbers, default=0) + 1 - len(numbers))


def _report(role: str, process: subprocess.Popen[str], result: Result) -> None:
    text, errors = process.communicate("x", timeout=_CHILD_TIMEOUT_S)
    if process.returncode:
        result.mixed.append(f"the {role} failed: {errors}")
        return
    report = json.loads(text)
    if role == "reader":
        result.reads += report["reads"]
    else:
        result.scans += report["reads"]
    result.mixed += report["first"]
    if report["backwards"]:
        result.mixed.append(f"the {role} saw the step go back {report['backwards']} times")


def _start(*arguments: str | Path, delay: str = "0") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.processes", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TFSPS_FAULT_DELAY": delay},
        text=True,
    )


def _kill_a_writer(path: Path, rng: random.Random, before: int) -> int:
    """Starts a writer and kills it at a random time of its steps, or while it takes over from the previous one.

    Returns:
      The last step that it reported, or else `before`, the last step that the previous writer reported.
    """
    slowed = rng.random() < 2 / 3  # with fault points: most time is spent between two rows of a mutation
    writer = _start("writer", path, delay="1" if slowed else "0")
    assert writer.stdout is not None
    first_line = ""
    if rng.random() < _KILLED_AS_IT_OPENS:
        while not _has_lock(path, writer):  # it then has to read the tables and the disk
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
    else:
        first_line = writer.stdout.readline()  # the group is open
        if not first_line:
            raise AssertionError(f"the writer failed: {writer.communicate(timeout=_CHILD_TIMEOUT_S)[1]}")
        time.sleep(rng.uniform(0, 0.15 if slowed else 0.05))
    os.kill(writer.pid, signal.SIGKILL)
    # communicate() would lose the lines that readline() has buffered.
    lines = [first_line, *writer.stdout.read().splitlines(keepends=True)]
    writer.wait(timeout=_CHILD_TIMEOUT_S)
    for stream in (writer.stdin, writer.stdout, writer.stderr):
        if stream is not None:
            stream.close()
    lines = [line for line in lines if line.endswith("\n")]  # the last line may be incomplete
    return int(lines[-1]) if lines else before


def _has_lock(path: Path, writer: subprocess.Popen[str]) -> bool:
    """Whether the writer has taken the group's lock, or has ended."""
    file = os.stat(path / "writer.lock")
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{writer.pid}/fd"):
            status = os.stat(f"/proc/{writer.pid}/fd/{descriptor}")
            if (status.st_dev, status.st_ino) == (file.st_dev, file.st_ino):
                return True
    return writer.poll() is not None


def _check(path: Path, expectation: Expectation, acknowledged: int, result: Result) -> list[str]:
    if os.environ.get("TFSPS_FAULT_OFF") in ("seqlock", "scan_images"):
        return []  # these controls test the reader and the scanner
    wrong = []
    # Checks as a reader, which cannot roll back, and then as the next writer.
    for mode in ("r", "r+"):
        try:
            wrong += [f"{mode}: {problem}" for problem in _check_as(mode, path, expectation, acknowledged, result)]
        except DamagedFileError as error:
            wrong.append(f"{mode}: {error}")
    return wrong


def _check_as(mode: str, path: Path, expectation: Expectation, acknowledged: int, result: Result) -> list[str]:
    wrong: list[str] = []
    group = Group.open(path, mode)
    try:
        if mode == "r":
            result.mid_mutation += group.tables["hot"].stats()["unfinished"]
        elif not (report := group.tables["mixed"].verify()).ok:
            wrong += report.problems
        step = group.step
        if step not in (acknowledged, acknowledged + 1):
            wrong.append(f"step {step}, acknowledged was {acknowledged}")
        return wrong + expectation.check_all(group, step)
    finally:
        _close(group.tables)


def _close(tables: dict[str, Table]) -> None:
    for table in tables.values():
        table.close()
    tables.clear()
