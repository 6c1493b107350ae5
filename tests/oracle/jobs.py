"""Starts the ranks of one run, kills them as the plan says, and waits for their end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.oracle import progress
from tests.oracle.options import Kill, Plan

HERE = Path(__file__).resolve().parent
for _folder in ("reference", "multirank"):
    sys.path.append(str(HERE.parent / _folder))

import launch  # noqa: E402

RUN_S = 420.0  # for a run that takes some seconds: others may leave it a fraction of the machine
TIMEOUT_S = 180  # TFSPS_TIMEOUT_S: ranks name who is missing before the run is given up
JOB = "oracle"
_RANKS = ("program.py", "direct_launcher.py", "fork_server.py")  # in command lines of ranks, whoever has started them


class HangError(Exception):
    """A run did not end in time; with its output."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of a run.

    Attributes:
      status: Of the launcher.
      output: Of all ranks.
      killed: Whether somebody was killed.
      progress: Of each rank, when the run had ended; None: it had not begun.
    """

    status: int
    output: str
    killed: bool
    progress: list[progress.Progress | None]


@contextlib.contextmanager
def started(plan: Plan, path: Path, run: int, tables: Path, by_run: bool) -> Iterator[launch.Launch]:
    """Starts the ranks; the only place that knows how. Whatever is left of them at the end is killed.

    Args:
      plan: Of the draw.
      path: Its file.
      run: Number of the run.
      tables: TFSPS_DIR.
      by_run: By `tf-sparse-ps run`.
    """
    options = plan.options
    env = {"TFSPS_DIR": str(tables), "TFSPS_TIMEOUT_S": str(TIMEOUT_S), "CUDA_VISIBLE_DEVICES": ""}
    if options.named:
        env |= {"TFSPS_JOB": JOB, "TFSPS_ACCEPT_LOST_ROWS": JOB}
    engine = launch.TENSORFLOW if options.engine == "tensorflow" else launch.HOROVOD
    with launch.launched(
        str(HERE / "program.py"),
        str(path),
        str(run),
        hosts=options.hosts,
        ranks=options.ranks,
        env=env,
        collectives=engine,
        by_run=by_run,
    ) as job:
        yield job


def run(plan: Plan, path: Path, number: int, tables: Path) -> Outcome:
    """Makes one run of a draw.

    Raises:
      HangError: It did not end within `RUN_S`.
    """
    folder = path.parent / f"run{number}"
    folder.mkdir()
    kill = plan.kills[number] if number < len(plan.kills) else None
    ranks = plan.options.ranks
    with started(plan, path, number, tables, kill is not None and kill.who == "launcher") as job:
        deadline = time.monotonic() + RUN_S
        killed = False
        if kill is not None and not kill.point:
            killed = _kill(kill, plan, folder, job, deadline)
        try:
            status = job.wait(max(deadline - time.monotonic(), 1.0))
        except TimeoutError as error:
            raise HangError(f"run {number} did not end within {RUN_S:.0f} s: {error}") from None
        notes = [progress.read(folder, rank) for rank in range(ranks)]
        _ended(notes, job)
        (folder / "output.txt").write_text(job.output)
        if kill is not None and kill.point:  # the rank has killed itself, unless it never came there
            killed = f"status code {-kill.signal}." in job.output
        return Outcome(status, job.output, killed, notes)


def _kill(kill: Kill, plan: Plan, folder: Path, job: launch.Launch, deadline: float) -> bool:
    """Waits until a rank has got far enough, and kills. Returns whether somebody was there to be killed."""
    ranks = plan.options.ranks
    while time.monotonic() < deadline:
        if job.process.poll() is not None:
            return False
        notes = [note for rank in range(ranks) if (note := progress.read(folder, rank))]
        begun = [note for note in notes if note.phase == "running" and (note.op, note.sub) >= (kill.op, kill.sub)]
        if (kill.op < 0 and len(notes) == ranks) or begun or any(note.phase == "done" for note in notes):
            break
        time.sleep(0.002)
    time.sleep(kill.delay_s)
    pids = [None if (note := progress.read(folder, rank)) is None else note.pid for rank in range(ranks)]
    own = {one.pid for one in launch.family(job.process.pid)}
    victims: list[int | None] = [pids[kill.rank % ranks]]
    if kill.who == "leader":
        victims = [pids[plan.options.nodes[kill.rank % len(plan.options.nodes)][0]]]
    elif kill.who == "launcher":
        victims = [job.process.pid]
    elif kill.who == "everything":
        victims = [job.process.pid, *pids]
    killed = False
    for pid in victims:
        if pid in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.Signals(kill.signal))
                killed = True
    return killed


def _ended(notes: list[progress.Progress | None], job: launch.Launch) -> None:
    """All ranks are gone, also behind a launcher that was killed.

    Raises:
      HangError: One is not.
    """
    alive = []
    for note in notes:
        if note is not None and psutil.pid_exists(note.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                one = psutil.Process(note.pid)
                if any(word.endswith(_RANKS) for word in one.cmdline()):  # else the id is another process's by now
                    alive.append(one)
    _, alive = psutil.wait_procs(alive, 60)
    if alive:
        raise HangError(f"ranks outlived their launcher by a minute: {alive}\n{job.output[-5000:]}")
