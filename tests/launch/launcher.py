"""Starts `tf-sparse-ps run` for a test, and ends everything that is left of it in any case."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from free_ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
# A process in the background, or under nohup, may ignore these signals, and the processes that it starts would, too.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
LONGEST_S = 60.0  # for programs that take seconds, on a machine with other work
PROLOGUE = """
import json, os, pathlib, signal, subprocess, sys, time
rank, folder = int(os.environ["TFSPS_RANK"]), pathlib.Path(os.environ["FOLDER"])
def note(name, text=""):
    path = folder / f".{name}"
    path.write_text(text)
    path.rename(folder / name)
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
"""


SECRET = "TFSPS_SECRET"
_SECRET = "of the launchers of a test"


def environment(folder: Path, **values: str) -> dict[str, str]:
    """Returns the environment of a launcher."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFSPS_", "HOROVOD_", "TF_C"))}
    kept |= {"PYTHONPATH": str(ROOT), "FOLDER": str(folder), "TFSPS_DIR": str(folder / "tables"), SECRET: _SECRET}
    return kept | values


class Launcher:
    """A running launcher.

    Attributes:
      process: The process of the launcher.
      stdout, stderr: Its output so far.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        """Starts the launcher."""
        self.stdout, self.stderr = b"", b""
        self._family: dict[int, psutil.Process] = {}
        command = [sys.executable, "-m", "tf_sparse_ps", "run", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._readers = [threading.Thread(target=self._read, args=(name,)) for name in ("stdout", "stderr")]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        stream = getattr(self.process, name)
        while part := os.read(stream.fileno(), 1 << 16):
            setattr(self, name, getattr(self, name) + part)

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """Waits for the launcher's end; returns its status."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"did not end within {timeout_s} s:\n{self.said}") from None
        for reader in self._readers:
            reader.join(10)
        return status

    @property
    def said(self) -> str:
        """The output of the launcher and its ranks to stderr."""
        return self.stderr.decode(errors="replace")

    def remember(self) -> None:
        """Records the launcher's descendants, which are ended after it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._family |= {
                process.pid: process for process in psutil.Process(self.process.pid).children(recursive=True)
            }

    def end(self) -> None:
        """Kills the launcher and all its descendants."""
        self.remember()
        for process in self._family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # psutil refuses if the id belongs to a new process
        self.process.kill()
        self.process.wait(10)
        for reader in self._readers:
            reader.join(10)


class Launchers:
    """Starts launchers in a folder of a test."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for the notes of programs."""
        self.folder = folder
        self._started: list[Launcher] = []

    def __call__(self, *arguments: str, program: str, **values: str) -> Launcher:
        """Starts a launcher.

        Args:
          arguments: Options of the launcher.
          program: Python code, which can use the names of `PROLOGUE`.
          values: Additions to the environment.
        """
        file = self.folder / f"program-{len(self._started)}.py"
        file.write_text(PROLOGUE + program)
        return self.start([*arguments, sys.executable, str(file)], **values)

    def start(self, arguments: list[str], **values: str) -> Launcher:
        """Starts a launcher with these arguments."""
        self._started.append(Launcher(arguments, environment(self.folder, **values)))
        return self._started[-1]

    def wait_for(self, *names: str, timeout_s: float = LONGEST_S) -> list[str]:
        """Waits until programs have made these notes; returns their texts."""
        until(lambda: all((self.folder / name).exists() for name in names), timeout_s, self._all)
        for launcher in self._started:
            launcher.remember()
        return [(self.folder / name).read_text() for name in names]

    def _all(self) -> str:
        return "\n".join(launcher.said for launcher in self._started)

    def end(self) -> None:
        """Ends all launchers."""
        for launcher in self._started:
            launcher.end()


def until(done: Callable[[], bool], timeout_s: float = LONGEST_S, what: Callable[[], str] = str) -> None:
    """Waits until `done` returns True.

    Raises:
      TimeoutError: It did not in time. The text is that of `what`.
    """
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(what())
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def free_port() -> int:
    """Returns a port of 127.0.0.1 that no process uses now."""
    return free_ports(1)[0]
