"""Which eager operations between ranks this process is in: in graphs marks say so (`_ops.mark`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_running: dict[object, tuple[str, int]] = {}


@contextlib.contextmanager
def running(operation: str) -> Iterator[None]:
    """Surrounds the call of one."""
    call = object()
    _running[call] = (operation, time.monotonic_ns())
    try:
        yield
    finally:
        del _running[call]


def in_flight() -> list[tuple[str, int]]:
    """Those that have begun and not ended: name, and since when by the monotonic clock, in nanoseconds."""
    return list(_running.values())
