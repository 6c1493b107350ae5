"""The processes of this node's ranks: how they are started, seen to end, and ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_START = str(Path(__file__).with_name("rank_start.py"))


class Rank:
    """A rank's process, in a session of its own.

    Attributes:
      number: The rank.
      pid: Its process id.
      status: As `subprocess.Popen.returncode` has it; None while it runs.
      told: It was told to end, so its end tells nothing.
    """

    def __init__(
        self, number: int, command: Sequence[str], environment: Mapping[str, str], streams: tuple[int, int, int]
    ) -> None:
        """Starts it, in the main thread: when this thread ends, so does the rank.

        Args:
          number: The rank.
          command: A program's path and arguments.
          environment: All of it.
          streams: Stdin, stdout and stderr.
        """
        self.number, self.status, self.told = number, None, False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _START, str(os.getpid()), *command],
            env=environment,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
        )
        self.pid = self._process.pid

    number: int
    pid: int
    status: int | None
    told: bool

    def report_end(self, events: queue.SimpleQueue[Any]) -> None:
        """Puts this rank into a queue when it ends: a thread waits for it, so that ends are told in their order."""

        def wait() -> None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            events.put(self)

        threading.Thread(target=wait, name=f"rank-{self.number}", daemon=True).start()

    def collect(self) -> int:
        """Takes its status after it has ended. Where it failed, or was told to end, its children end with it.

        Before its status is taken no other process can have its id, which is also that of its session.
        """
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if self.told or (found is not None and found.si_status != 0):
            self._signal(signal.SIGKILL)
        self.status = self._process.wait()
        return self.status

    def end(self, number: int) -> None:
        """Sends a signal to it and its children, if it runs."""
        if self.status is None:
            self.told = True
            self._signal(number)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
