"""Starts a rank program on several ranks, in a private folder of tables, and cleans up whatever happens.

`direct_launcher.py` forks the ranks. It is itself forked from a process that has imported TensorFlow
(`fork_server.py`), so a launch takes seconds less than with horovodrun. Tests of what horovodrun or `tf-sparse-ps run`
does ask for them. pytest's option `--collectives` says what connects the ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from fork_server import AT_IMPORT, ForkedProcess, ForkServer

# Of pytest's option `--collectives`, for the programs.
VARIABLE, HOROVOD, TENSORFLOW = "TSPS_TEST_COLLECTIVES", "horovod", "tensorflow"
HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TWO_NODES = "localhost:2,127.0.0.1:2"  # local ranks 0 1 0 1, cross ranks 0 0 1 1
ONE_NODE = "localhost:4"
LONGEST_S = 500.0  # for what takes a minute, on a machine that has something else to do; a job that hangs takes it


@dataclasses.dataclass
class Launch:
    """A running job.

    Attributes:
      folder: For the program's results; its second argument.
      tables: TFSPS_DIR.
      process: The launcher.
    """

    folder: Path
    tables: Path
    process: subprocess.Popen[str] | ForkedProcess
    _lines: list[tuple[float, str]] = dataclasses.field(default_factory=list)

    @property
    def output(self) -> str:
        """What all ranks have printed so far."""
        return "".join(line for _, line in list(self._lines))

    @property
    def talks(self) -> bool:
        """Whether ranks may still print."""
        return self.process.poll() is None or self._reader.is_alive()

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """Waits for the end of the job and returns the launcher's status.

        Raises:
          TimeoutError: With the output.
        """
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the job did not end within {timeout_s} s:\n{self.output[-20000:]}") from None
        self._reader.join(10)
        return status

    def wait_for(self, text: str, timeout_s: float, count: int = 1) -> float:
        """Waits until `text` has been printed `count` times; returns the time (`time.monotonic`) of the last one."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            times = [when for when, line in list(self._lines) if text in line]
            if len(times) >= count:
                return times[count - 1]
            if not self.talks:
                break
            time.sleep(0.02)
        raise TimeoutError(f"{text!r} was not printed {count} times within {timeout_s} s:\n{self.output[-20000:]}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append((time.monotonic(), line))

    def __post_init__(self) -> None:
        """Starts to collect the output."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()


def family(pid: int) -> list[psutil.Process]:
    """A process, and what it has started."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def launched(
    program: str,
    *args: str,
    hosts: str = TWO_NODES,
    ranks: int = 4,
    env: dict[str, str] | None = None,
    by_horovodrun: bool = False,
    by_run: bool = False,
    collectives: str | None = None,
) -> Iterator[Launch]:
    """Runs `program` of this folder on several ranks; ends and removes what is left of it afterwards.

    Args:
      program: A file beside this one; called with `args` and the folder for results.
      args: First arguments.
      hosts: As horovodrun's -H.
      ranks: As horovodrun's -np.
      env: Added to the environment.
      by_horovodrun: Not started directly.
      by_run: Started by `tf-sparse-ps run`; then on one machine.
      collectives: What connects the ranks; None: what pytest's option says.
    """
    engine = collectives or os.environ.get(VARIABLE, HOROVOD)
    if by_horovodrun and engine != HOROVOD:
        pytest.skip("about Horovod's launcher")
    tables = Path(tempfile.mkdtemp(prefix="tsps-test-", dir="/dev/shm"))
    folder = Path(tempfile.mkdtemp(prefix="tsps-test-"))
    folders = ("reference", "training", "multirank")
    paths = [str(REPOSITORY), *(str(REPOSITORY / "tests" / folder) for folder in folders)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        **AT_IMPORT,
        "TFSPS_DIR": str(tables),
        VARIABLE: engine,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",  # ranks that start late are none to give up
        **(env or {}),
    }
    environment.pop("TFSPS_JOB", None)
    if env and "TFSPS_JOB" in env:
        environment["TFSPS_JOB"] = env["TFSPS_JOB"]
    job = [str(HERE / program), *args, str(folder)]
    process: subprocess.Popen[str] | ForkedProcess
    if by_horovodrun or by_run:
        if by_horovodrun:
            launcher = [str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", str(ranks), "-H", hosts]
        else:
            launcher = ["-m", "tf_sparse_ps", "run", "-np", str(ranks), "--all-ranks", "--collectives", engine]
        process = subprocess.Popen(
            [sys.executable, *launcher, sys.executable, *job],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    else:
        arguments = [engine, hosts, str(ranks), *job]
        process = ForkServer.of_this_process().start(HERE / "direct_launcher.py", arguments, environment)
    known: dict[int, psutil.Process] = {}
    done = threading.Event()

    def remember() -> None:
        # Ranks outlive a launcher that dies; their ids must be known before.
        while not done.wait(0.2):
            known.update((one.pid, one) for one in family(process.pid))

    watcher = threading.Thread(target=remember, daemon=True)
    watcher.start()
    try:
        yield Launch(folder, tables, process)
    finally:
        done.set()
        watcher.join()
        known.update((one.pid, one) for one in family(process.pid))
        for one in known.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("resource_tracker" in word for word in one.cmdline()):
                    continue  # removes the launcher's semaphores once the launcher is gone, and ends
                one.send_signal(signal.SIGKILL)  # psutil refuses when the id belongs to another process by now
        process.wait(10)
        shutil.rmtree(tables, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def run(program: str, *args: str, timeout_s: float = LONGEST_S, **options: object) -> Launch:
    """Runs a program to its end. Only its output is left.

    Raises:
      AssertionError: It failed; with its output.
    """
    with launched(program, *args, **options) as job:  # type: ignore[arg-type]
        status = job.wait(timeout_s)
        assert status == 0, job.output[-20000:]
        return job


def words(sequence: Sequence[object]) -> str:
    """A sequence as arguments."""
    return ",".join(str(one) for one in sequence)
