"""Random SIGKILLs of a writer, with a reader and a scanner running beside, in rounds of one group each."""

from __future__ import annotations

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

from tests.crash.content import Expectation, Group
from tf_sparse_ps.errors import DamagedFileError
from tf_sparse_ps.table import Table

_KILLS_PER_ROUND = 30  # then a new, small group, so that checking every row stays quick
_CHILD_TIMEOUT_S = 60


@dataclasses.dataclass
class Result:
    """What a run found."""

    kills: int = 0
    mid_mutation: int = 0  # kills that left a mutation unfinished
    steps: int = 0
    reads: int = 0
    scans: int = 0
    torn: list[str] = dataclasses.field(default_factory=list)  # found after a kill
    mixed: list[str] = dataclasses.field(default_factory=list)  # seen by the reader or the scanner

    @property
    def violations(self) -> int:
        return len(self.torn) + len(self.mixed)


def run(kills: int, seed: int) -> Result:
    """Kills writers until `kills` are dead or a violation is found.

    With TFSPS_FAULT_OFF=undo, seqlock or scan_images in the environment (and the build with fault points) it is a
    control: it must find violations. The core reads that variable once, so a control needs a process of its own.

    Args:
      kills: Number of SIGKILLs.
      seed: Of the instants.
    """
    result = Result()
    rng = random.Random(seed)
    with tqdm(total=kills, desc="kills", unit="kill", delay=2, disable=None) as bar:
        while result.kills < kills and not result.violations:
            with tempfile.TemporaryDirectory(prefix="tsps-crash-", dir="/dev/shm") as folder:
                _round(Path(folder), min(_KILLS_PER_ROUND, kills - result.kills), rng, result, bar)
    return result


def _round(folder: Path, kills: int, rng: random.Random, result: Result, bar: tqdm) -> None:
    path, untouched_path = folder / "group", folder / "untouched"
    untouched = Group.create(untouched_path)
    Group.create(path)  # closed at once: the writer process takes it over
    expectation = Expectation(untouched)
    beside = {what: _start(what, path, untouched_path) for what in ("reader", "scanner")}
    try:
        for _ in range(kills):
            acknowledged = _kill_a_writer(path, rng)
            result.kills += 1
            bar.update()
            wrong = _check(path, expectation, acknowledged, result)
            result.torn += wrong
            result.steps += acknowledged
            if wrong:
                break  # nothing after it would mean much
        for what, process in beside.items():
            _report(what, process, result)
    finally:
        for process in beside.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def _report(what: str, process: subprocess.Popen[str], result: Result) -> None:
    text, errors = process.communicate("x", timeout=_CHILD_TIMEOUT_S)
    if process.returncode:
        result.mixed.append(f"the {what} failed: {errors}")
        return
    report = json.loads(text)
    if what == "reader":
        result.reads += report["reads"]
    else:
        result.scans += report["reads"]
    result.mixed += report["first"]
    if report["backwards"]:
        result.mixed.append(f"the {what} saw the step go back {report['backwards']} times")


def _start(*arguments: str | Path, delay: str = "0") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.processes", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TFSPS_FAULT_DELAY": delay},
        text=True,
    )


def _kill_a_writer(path: Path, rng: random.Random) -> int:
    """Starts a writer, kills it at a random instant of its steps, returns the last step that it reported."""
    slowed = rng.random() < 2 / 3  # with fault points: most of its time is spent between two rows of a mutation
    writer = _start("writer", path, delay="1" if slowed else "0")
    assert writer.stdout is not None
    first = writer.stdout.readline()  # it has the group open
    if not first:
        raise AssertionError(f"the writer failed: {writer.communicate(timeout=_CHILD_TIMEOUT_S)[1]}")
    time.sleep(rng.uniform(0, 0.15 if slowed else 0.05))
    os.kill(writer.pid, signal.SIGKILL)
    # Not communicate(): it would miss what readline() has buffered.
    lines = [first, *writer.stdout.read().splitlines(keepends=True)]
    writer.wait(timeout=_CHILD_TIMEOUT_S)
    for stream in (writer.stdin, writer.stdout, writer.stderr):
        if stream is not None:
            stream.close()
    lines = [line for line in lines if line.endswith("\n")]  # the last may have been cut
    return int(lines[-1])


def _check(path: Path, expectation: Expectation, acknowledged: int, result: Result) -> list[str]:
    if os.environ.get("TFSPS_FAULT_OFF") in ("seqlock", "scan_images"):
        return []  # these controls are about the reader and the scanner
    wrong = []
    # As a reader that cannot roll back; then as the next writer.
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
