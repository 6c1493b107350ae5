"""The progress of a rank, in a file that outlives it: pid, phase, operation and step."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

PHASES = ("start", "found", "restoring", "running", "done")
_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of one rank.

    Attributes:
      pid: Its process id.
      phase: One of `PHASES`.
      op, sub: The operation, and its step, that the rank has begun.
    """

    pid: int
    phase: str
    op: int
    sub: int


class Writer:
    """Writes the progress of this process.

    Attributes:
      op: The operation that the process has begun.
    """

    def __init__(self, folder: str | Path, rank: int) -> None:
        """`folder` is the run's folder."""
        path = path_of(folder, rank)
        self.op = -1
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, phase: str, op: int = -1, sub: int = 0) -> None:
        """Records what this process begins, by one `pwrite`, so that a kill leaves the old record or the new one."""
        self.op = op
        line = f"{os.getpid()} {phase} {op} {sub}".ljust(_SIZE - 1) + "\n"
        os.pwrite(self._descriptor, line.encode(), 0)


def path_of(folder: str | Path, rank: int) -> Path:
    """Returns the file of a rank."""
    return Path(folder) / f"rank{rank}.progress"


def read(folder: str | Path, rank: int) -> Progress | None:
    """Returns the progress of a rank; None if it has not written any."""
    try:
        words = path_of(folder, rank).read_text().split()
    except FileNotFoundError:
        return None
    return Progress(int(words[0]), words[1], int(words[2]), int(words[3])) if len(words) == 4 else None
