"""Processes of ranks: whether they are alive, and their memory.

A pid and the start of the process identify it, because pids are used again. A pid of another PID namespace, such as
that of a container, says nothing here: such processes are "unknown".
"""

from __future__ import annotations

import dataclasses
import os
import time

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENDED = "ZXx"  # states of processes that have ended
# The kernel walks all pages of a process to find its PSS, and so it is read rarely, and more rarely if it takes long.
_PSS_PAUSE_S = 5.0
_PSS_PAUSES = 300


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of this PID namespace.

    Attributes:
      started: When it started, in clock ticks since boot.
      rss: The bytes of its memory that are resident, with all shared memory that it uses.
    """

    started: int
    rss: int


def find(pid: int) -> Process | None:
    """Returns a process, or None if it has ended or was never there."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in _ENDED else Process(int(fields[19]), int(fields[21]) * _PAGE)
    except (OSError, IndexError, ValueError):
        return None


def find_same(pid: int, started: int) -> Process | None:
    """Returns the process that had this pid and start, or None if it has ended or is not visible from here.

    Args:
      pid: The pid.
      started: The start in clock ticks since boot; 0: it is not known.
    """
    process = find(pid)
    return process if process is not None and started in (0, process.started) else None


class PssReader:
    """Reads the PSS of processes: shared pages are divided by the number of the processes that use them."""

    def __init__(self) -> None:
        """Begins with no process."""
        self._known: dict[tuple[int, int], tuple[float, int | None]] = {}  # when to read it again, and the bytes

    def of(self, pid: int, started: int) -> int | None:
        """Returns the PSS of a process in bytes, read some seconds ago at most unless it takes long to read.

        Returns:
          The bytes. None: the kernel does not report them to this user.
        """
        begun = time.monotonic()
        due, pss = self._known.get((pid, started), (0.0, None))
        if begun >= due:
            pss = _pss(pid)
            took = time.monotonic() - begun
            self._known[pid, started] = (begun + max(_PSS_PAUSE_S, took * _PSS_PAUSES), pss)
        return pss


def _pss(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
