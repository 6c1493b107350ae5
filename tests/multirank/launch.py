"""Starts a rank program on several ranks in a private folder of tables, and cleans up in any case.

`direct_launcher.py` forks the ranks. It is itself forked from a process that has imported TensorFlow
(`fork_server.py`), so a launch takes seconds less than with horovodrun. Tests of horovodrun or `tf-sparse-ps run` ask
for these launchers. pytest's option `--collectives` chooses what connects the ranks.
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

# The environment by which programs get pytest's option `--collectives`.
VARIABLE, HOROVOD, TENSORFLOW = "TSPS_TEST_COLLECTIVES", "horovod", "tensorflow"
HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TWO_NODES = "localhost:2,127.0.0.1:2"  # local ranks 0 1 0 1, cross ranks 0 0 1 1
ONE_NODE = "localhost:4"
LONGEST_S = 2400.0  # for jobs that take seven minutes, on a machine with other work; a job that hangs takes this long


@dataclasses.dataclass
class Launch:
    """A running job.

    Attributes:
      folder: The folder for the program's results, which is its last argument.
      tables: The folder TFSPS_DIR.
      process: The launcher.
    """

    folder: Path
    tables: Path
    process: subprocess.Popen[str] | ForkedProcess
    _lines: list[tuple[float, str]] = dataclasses.field(default_factory=list)

    @property
    def output(self) -> str:
        """The output of all ranks so far."""
        return "".join(line for _, line in list(self._lines))

    @property
    def talks(self) -> bool:
        """Whether ranks may still print."""
        return self.process.poll() is None or self._reader.is_alive()

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """Waits for the end of the job and returns the launcher's status.

        Raises:
          TimeoutError: The job still runs. The text has its output.
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
    """Returns a process and all its descendants."""
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
    """Runs `program` of this folder on several ranks; ends and removes all that is left of it afterwards.

    Args:
      program: A file of this folder, which gets `args` and the folder for results.
      args: The first arguments of the program.
      hosts: The hosts, as for horovodrun's -H.
      ranks: The number of ranks, as for horovodrun's -np.
      env: Additions to the environment.
      by_horovodrun: Whether horovodrun starts the ranks.
      by_run: Whether `tf-sparse-ps run` starts the ranks, on one machine.
      collectives: The library that connects the ranks; None: pytest's option decides.
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
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",  # ranks may start late
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
        # Ranks survive a launcher that dies, so their ids must be known before.
        while not done.wait(0.2):
            known.update((process_of_job.pid, process_of_job) for process_of_job in family(process.pid))

    watcher = threading.Thread(target=remember, daemon=True)
    watcher.start()
    try:
        yield Launch(folder, tables, process)
    finally:
        done.set()
        watcher.join()
        known.update((process_of_job.pid, process_of_job) for process_of_job in family(process.pid))
        for process_of_job in known.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("resource_tracker" in word for word in process_of_job.cmdline()):
                    continue  # removes the launcher's semaphores after the launcher has ended, and then ends
                process_of_job.send_signal(signal.SIGKILL)  # psutil refuses if the id belongs to a new process
        process.wait(10)
        shutil.rmtree(tables, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def run(program: str, *args: str, **options: object) -> Launch:
    """Runs a program to its end. Only its output is kept.

    Raises:
      AssertionError: The job failed. The text has its output.
    """
    with launched(program, *args, **options) as job:  # type: ignore[arg-type]
        status = job.wait()
        assert status == 0, job.output[-20000:]
        return job


def words(sequence: Sequence[object]) -> str:
    """Returns a sequence as an argument, separated by commas."""
    return ",".join(str(item) for item in sequence)
