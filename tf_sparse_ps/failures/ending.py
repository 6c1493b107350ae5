"""Telling what was found, and ending a process that a lost rank keeps inside a TensorFlow call."""

from __future__ import annotations

import os
import sys
import threading
import time
import types

_GRACE_S = 4.0


def tell(found: BaseException, rank: int, stop: threading.Event) -> None:
    """Prints an error at once, and ends the process unless its main thread comes to raise it.

    A thread calls it. It returns when `stop` is set.
    """
    print(f"tf_sparse_ps: {found}", file=sys.stderr, flush=True)
    where = _main_thread_call()
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        if stop.wait(0.1):
            return
        now = _main_thread_call()
        if now is None or where is None or now[0] is not where[0] or now[1] != where[1]:
            # It moves: its next collective or step reports the error. Look again from here.
            where, deadline = now, time.monotonic() + _GRACE_S
    print(
        f"tf_sparse_ps: rank {rank} ends: it has been inside one TensorFlow call since then",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def _main_thread_call() -> tuple[types.FrameType, int] | None:
    """The TensorFlow call that the main thread is in, and where, or None when it is in none."""
    frame: types.FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None or not frame.f_code.co_filename.endswith(os.path.join("eager", "execute.py")):
        return None
    return frame, frame.f_lasti
