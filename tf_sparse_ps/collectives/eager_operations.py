"""The waits of this process for other ranks outside of graphs. In graphs, marks record them (`_ops.mark`).

A wait times out TFSPS_TIMEOUT_S after an awaited rank last reported progress. The liveness check finds out when that
was (`failures/liveness_check.py`). Without a liveness check, a wait times out TFSPS_TIMEOUT_S after it began.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from tf_sparse_ps.errors import CollectivesError
from tf_sparse_ps.node import activity

_running: dict[Wait, None] = {}
_progress_of_others_ns = 0
_refusal = ""


class Wait:
    """A wait of this process for other ranks.

    Attributes:
      operation: The name of the operation that this process waits in.
      begin_ns: The time at which the wait began, by the monotonic clock.
      awaited: The ranks that this process waits for; None: all ranks take part in the operation.
      reason: Why the wait has timed out, in words; "" until then. Another thread sets it.
    """

    def __init__(self, operation: str, awaited: tuple[int, ...] | None) -> None:
        self.operation, self.awaited, self.begin_ns = operation, awaited, time.monotonic_ns()
        self.reason = ""


@contextlib.contextmanager
def running(operation: str, awaited: tuple[int, ...] | None = None) -> Iterator[Wait]:
    """Surrounds a wait. For the arguments see `Wait`.

    Raises:
      CollectivesError: Waits are refused.
    """
    if _refusal:
        raise CollectivesError(f"'{operation}' did not begin: {_refusal}")
    wait = Wait(operation, awaited)
    _running[wait] = None
    activity.progress()
    try:
        yield wait
    finally:
        del _running[wait]
        activity.progress()


def refuse(reason: str) -> None:
    """Refuses all waits that begin later, for this reason. "" allows them again."""
    global _refusal
    _refusal = reason


def waits() -> list[Wait]:
    """Returns the waits that have begun and not ended."""
    return list(_running)


def in_flight() -> list[tuple[str, int]]:
    """Returns name and begin (monotonic clock, in nanoseconds) of each wait that is an operation of all ranks."""
    return [(wait.operation, wait.begin_ns) for wait in waits() if wait.awaited is None]


def begin_of_silence_ns(begin_ns: int) -> int:
    """Returns the time since which a wait knows of no progress of the awaited ranks.

    Args:
      begin_ns: The time at which the wait began.
    """
    return max(begin_ns, _progress_of_others_ns)


def others_progressed(when_ns: int) -> None:
    """Records that awaited ranks have made progress at a time, by this process's monotonic clock."""
    global _progress_of_others_ns
    _progress_of_others_ns = max(_progress_of_others_ns, when_ns)
