"""What this process is doing, and when it last made progress: other ranks may be waiting for it.

Whatever can take long reports its progress here: tracing, restoring, loading, evaluating, reading input. A rank that
waits asks for both (`failures/liveness_check.py`), and waits on while the ranks that it waits for make progress.
Needs no TensorFlow. Thread-safe.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

_BEAT_NS = 500_000_000  # listeners are told at most so often

_current: dict[object, str] = {}  # in the order in which they began
_last_ns = time.monotonic_ns()
_told_ns = 0
_listeners: list[Callable[[], None]] = []


def begin(what: str) -> object:
    """This process begins something that can take long.

    Args:
      what: For messages, in words that follow "which is": "restoring a checkpoint".

    Returns:
      What `end` takes.
    """
    activity = object()
    _current[activity] = what
    progress()
    return activity


def end(activity: object) -> None:
    """It has ended. A second call does nothing."""
    if _current.pop(activity, None) is not None:
        progress()


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Surrounds something that can take long. See `begin`."""
    activity = begin(what)
    try:
        yield
    finally:
        end(activity)


def progress() -> None:
    """This process has made progress. Cheap: it can be called for every batch."""
    global _last_ns, _told_ns
    _last_ns = time.monotonic_ns()
    if _listeners and _last_ns - _told_ns > _BEAT_NS:
        _told_ns = _last_ns
        for listener in tuple(_listeners):
            listener()


def last_progress_ns() -> int:
    """When this process last made progress, by the monotonic clock."""
    return _last_ns


def current() -> str:
    """What this process is doing, the innermost activity; "": nothing that it has said."""
    return next(reversed(tuple(_current.values())), "")


def on_progress(listener: Callable[[], None]) -> None:
    """Calls `listener` after progress, at most twice a second, from whichever thread made it."""
    _listeners.append(listener)
