"""`Rank`: starts the process of a rank, detects its end, and ends it."""

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
    """The process of a rank, in a separate session.

    Attributes:
      number: The rank.
      pid: The process id.
      status: The status in the form of `subprocess.Popen.returncode`; None while the process runs.
      told: Whether the launcher has ended the process, so that its status does not show a failure.
    """

    def __init__(
        self, number: int, command: Sequence[str], environment: Mapping[str, str], streams: tuple[int, int, int]
    ) -> None:
        """Starts the process. The main thread calls this, because the rank ends when the calling thread ends.

        Args:
          number: The rank.
          command: The path of the program, and its arguments.
          environment: All environment variables of the process.
          streams: The descriptors of stdin, stdout and stderr.
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
        """Starts a thread that puts this rank into a queue when it ends, so that ranks are queued as they end."""

        def wait() -> None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            events.put(self)

        threading.Thread(target=wait, name=f"rank-{self.number}", daemon=True).start()

    def collect(self) -> int:
        """Waits for the end of the process and returns its status. Kills its children if it failed or was ended.

        The children are killed before the status is collected. Until then, no other process can get its process id,
        which is also the id of its session.
        """
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if self.told or (result is not None and result.si_status != 0):
            self._signal(signal.SIGKILL)
        self.status = self._process.wait()
        return self.status

    def end(self, number: int) -> None:
        """Sends a signal to the process and its children if the process runs."""
        if self.status is None:
            self.told = True
            self._signal(number)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
