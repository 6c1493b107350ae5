"""Starts the ranks of one run, kills them as planned, and waits for their end."""

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

RUN_S = 420.0  # the limit of a run that takes some seconds, on a machine with other work
TIMEOUT_S = 180  # TFSPS_TIMEOUT_S: ranks name a missing rank before the run is abandoned
JOB = "oracle"
_RANKS = ("program.py", "direct_launcher.py", "fork_server.py")  # in command lines of ranks, whatever started them


class HangError(Exception):
    """A run did not end in time. The text has its output."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
      status: The exit status of the launcher.
      output: The output of all ranks.
      killed: Whether a process was killed.
      progress: The progress of each rank at the end of the run; None: the rank had not begun.
    """

    status: int
    output: str
    killed: bool
    progress: list[progress.Progress | None]


@contextlib.contextmanager
def started(plan: Plan, path: Path, run: int, tables: Path, by_run: bool) -> Iterator[launch.Launch]:
    """Starts the ranks, and kills those that are left at the end. Only this function knows how to start them.

    Args:
      plan: The plan of the draw.
      path: The file of the plan.
      run: The number of the run.
      tables: The folder TFSPS_DIR.
      by_run: Whether `tf-sparse-ps run` starts the ranks.
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
      HangError: The run did not end within `RUN_S`.
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
        if kill is not None and kill.point:  # the rank has killed itself, unless it never reached the point
            killed = f"status code {-kill.signal}." in job.output
        return Outcome(status, job.output, killed, notes)


def _kill(kill: Kill, plan: Plan, folder: Path, job: launch.Launch, deadline: float) -> bool:
    """Waits until a rank has reached the planned operation, and kills. Returns whether a process was killed."""
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
    job_pids = {process.pid for process in launch.family(job.process.pid)}
    victims: list[int | None] = [pids[kill.rank % ranks]]
    if kill.who == "leader":
        victims = [pids[plan.options.nodes[kill.rank % len(plan.options.nodes)][0]]]
    elif kill.who == "launcher":
        victims = [job.process.pid]
    elif kill.who == "everything":
        victims = [job.process.pid, *pids]
    killed = False
    for pid in victims:
        if pid in job_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.Signals(kill.signal))
                killed = True
    return killed


def _ended(notes: list[progress.Progress | None], job: launch.Launch) -> None:
    """Waits until all ranks have ended, even if their launcher was killed.

    Raises:
      HangError: A rank has not ended.
    """
    alive = []
    for note in notes:
        if note is not None and psutil.pid_exists(note.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(note.pid)
                if any(
                    word.endswith(_RANKS) for word in process.cmdline()
                ):  # otherwise the id belongs to a new process
                    alive.append(process)
    _, alive = psutil.wait_procs(alive, 60)
    if alive:
        raise HangError(f"ranks outlived their launcher by a minute: {alive}\n{job.output[-5000:]}")
