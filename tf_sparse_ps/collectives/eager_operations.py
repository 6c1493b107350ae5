"""For what this process waits outside of graphs (in graphs, marks say so: `_ops.mark`), and until when.

A wait is over TFSPS_TIMEOUT_S after a rank that is waited for last reported progress. When that was, the liveness check
finds out (`failures/liveness_check.py`); where there is none, a wait is over TFSPS_TIMEOUT_S after it began.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from tf_sparse_ps.node import activity

_running: dict[Wait, None] = {}
_progress_of_others_ns = 0


class Wait:
    """A wait of this process for other ranks.

    Attributes:
      operation: What is waited for.
      begin_ns: Since when, by the monotonic clock.
      awaited: The ranks that are waited for; None: this is an operation of all ranks.
      reason: Why it is over, in words; "": it is not. Another thread sets it.
    """

    def __init__(self, operation: str, awaited: tuple[int, ...] | None) -> None:
        self.operation, self.awaited, self.begin_ns = operation, awaited, time.monotonic_ns()
        self.reason = ""


@contextlib.contextmanager
def running(operation: str, awaited: tuple[int, ...] | None = None) -> Iterator[Wait]:
    """Surrounds a wait.

    Args:
      operation: See `Wait`.
      awaited: See `Wait`.
    """
    wait = Wait(operation, awaited)
    _running[wait] = None
    activity.progress()
    try:
        yield wait
    finally:
        del _running[wait]
        activity.progress()


def waits() -> list[Wait]:
    """Those that have begun and not ended."""
    return list(_running)


def in_flight() -> list[tuple[str, int]]:
    """Operations of all ranks among them: name, and since when by the monotonic clock, in nanoseconds."""
    return [(wait.operation, wait.begin_ns) for wait in waits() if wait.awaited is None]


def begin_of_silence_ns(begin_ns: int) -> int:
    """Since when a wait has heard nothing of the ranks that it waits for: `begin_ns`, or their last progress."""
    return max(begin_ns, _progress_of_others_ns)


def others_progressed(when_ns: int) -> None:
    """Ranks that this process waits for have made progress at this time, by this process's monotonic clock."""
    global _progress_of_others_ns
    _progress_of_others_ns = max(_progress_of_others_ns, when_ns)
