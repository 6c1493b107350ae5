"""Starts `tf-sparse-ps run` for a test, and ends what is left of it whatever happens."""

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
# What is started in the background, or by nohup, may ignore these, and what it starts would, too.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
LONGEST_S = 60.0  # for what takes seconds, on a machine that has something else to do
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
    """Of a launcher."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFSPS_", "HOROVOD_", "TF_C"))}
    kept |= {"PYTHONPATH": str(ROOT), "FOLDER": str(folder), "TFSPS_DIR": str(folder / "tables"), SECRET: _SECRET}
    return kept | values


class Launcher:
    """A launcher that runs.

    Attributes:
      process: It.
      stdout, stderr: What it has written so far.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        """Starts it."""
        self.stdout, self.stderr = b"", b""
        self._family: dict[int, psutil.Process] = {}
        command = [sys.executable, "-m", "tf_sparse_ps", "run", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._readers = [threading.Thread(target=self._read, args=(one,)) for one in ("stdout", "stderr")]
        for one in self._readers:
            one.start()

    def _read(self, name: str) -> None:
        stream = getattr(self.process, name)
        while part := os.read(stream.fileno(), 1 << 16):
            setattr(self, name, getattr(self, name) + part)

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """Waits for its end; returns its status."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"did not end within {timeout_s} s:\n{self.said}") from None
        for one in self._readers:
            one.join(10)
        return status

    @property
    def said(self) -> str:
        """What it and its ranks have written to stderr."""
        return self.stderr.decode(errors="replace")

    def remember(self) -> None:
        """Its descendants, which are ended after it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._family |= {one.pid: one for one in psutil.Process(self.process.pid).children(recursive=True)}

    def end(self) -> None:
        """Kills it and what it has started."""
        self.remember()
        for one in self._family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()  # psutil refuses when the id belongs to another process by now
        self.process.kill()
        self.process.wait(10)
        for reader in self._readers:
            reader.join(10)


class Launchers:
    """Starts launchers in a folder of a test."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where programs leave what they note."""
        self.folder = folder
        self._started: list[Launcher] = []

    def __call__(self, *arguments: str, program: str, **values: str) -> Launcher:
        """Starts one.

        Args:
          arguments: Options.
          program: Python, which has the names of `PROLOGUE`.
          values: Added to the environment.
        """
        file = self.folder / f"program-{len(self._started)}.py"
        file.write_text(PROLOGUE + program)
        return self.start([*arguments, sys.executable, str(file)], **values)

    def start(self, arguments: list[str], **values: str) -> Launcher:
        """Starts one with these arguments."""
        self._started.append(Launcher(arguments, environment(self.folder, **values)))
        return self._started[-1]

    def wait_for(self, *names: str, timeout_s: float = LONGEST_S) -> list[str]:
        """Waits until programs have noted these; returns what."""
        until(lambda: all((self.folder / name).exists() for name in names), timeout_s, self._all)
        for one in self._started:
            one.remember()
        return [(self.folder / name).read_text() for name in names]

    def _all(self) -> str:
        return "\n".join(one.said for one in self._started)

    def end(self) -> None:
        """Ends all."""
        for one in self._started:
            one.end()


def until(done: Callable[[], bool], timeout_s: float = LONGEST_S, what: Callable[[], str] = str) -> None:
    """Waits.

    Raises:
      TimeoutError: With `what`.
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
    """A port of 127.0.0.1 that nobody uses now."""
    return free_ports(1)[0]
