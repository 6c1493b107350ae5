"""The current activity of this process and the time of its last progress, for ranks that wait for this one.

Work that can take long reports its progress here: tracing, restoring, loading, evaluating, reading input. A rank that
waits asks for both (`failures/liveness_check.py`), and keeps waiting while the other ranks make progress.
The module does not need TensorFlow. It is thread-safe.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

_BEAT_NS = 500_000_000  # the shortest time between two calls of a listener

_current: dict[object, str] = {}  # descriptions of activities, in the order in which they began
_last_ns = time.monotonic_ns()
_listeners_called_ns = 0
_listeners: list[Callable[[], None]] = []
_on_change: list[Callable[[str], None]] = []


def begin(description: str) -> object:
    """Records that this process begins an activity that can take long.

    Args:
      description: The activity, in words that follow "which is" in messages: "restoring a checkpoint".

    Returns:
      A handle of the activity, for `end`.
    """
    activity = object()
    _current[activity] = description
    _changed()
    progress()
    return activity


def end(activity: object) -> None:
    """Records that an activity has ended. A second call does nothing."""
    if _current.pop(activity, None) is not None:
        _changed()
        progress()


@contextlib.contextmanager
def doing(description: str) -> Iterator[None]:
    """Surrounds an activity that can take long. See `begin`."""
    activity = begin(description)
    try:
        yield
    finally:
        end(activity)


def progress() -> None:
    """Records that this process has made progress. The call is cheap enough for every batch."""
    global _last_ns, _listeners_called_ns
    _last_ns = time.monotonic_ns()
    if _listeners and _last_ns - _listeners_called_ns > _BEAT_NS:
        _listeners_called_ns = _last_ns
        for listener in tuple(_listeners):
            listener()


def last_progress_ns() -> int:
    """Returns the time of the last progress of this process, in nanoseconds of the monotonic clock."""
    return _last_ns


def current() -> str:
    """Returns the description of the innermost activity of this process, or "" if no activity is recorded."""
    return next(reversed(tuple(_current.values())), "")


def on_change(listener: Callable[[str], None]) -> None:
    """Has `listener` called with `current()` whenever an activity begins or ends."""
    _on_change.append(listener)


def _changed() -> None:
    for listener in tuple(_on_change):
        listener(current())


def on_progress(listener: Callable[[], None]) -> None:
    """Has `listener` called after progress, at most twice a second, by the thread that made the progress."""
    _listeners.append(listener)
