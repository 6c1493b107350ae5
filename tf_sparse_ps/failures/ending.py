"""Reports a failure of other ranks, and ends a process that a lost rank keeps inside a TensorFlow call."""

from __future__ import annotations

import os
import sys
import threading
import time
import types

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import eager_operations

_GRACE_S = 4.0


def tell(error: BaseException, rank: int, stop: threading.Event) -> None:
    """Prints an error immediately, and ends the process if its main thread cannot raise the error.

    This process begins no further operations with other ranks. A rank that was late may still arrive, but others may
    have ended. So the next operation or step fails, and `failures.explain` replaces its error by this one.

    A thread calls this. It returns when `stop` is set.

    Args:
      error: The error.
      rank: The rank of this process.
      stop: Set at the end of the process.
    """
    eager_operations.refuse(str(error))
    _ops.refuse_collectives(str(error))
    print(f"tf_sparse_ps: {error}", file=sys.stderr, flush=True)
    last_call = _main_thread_call()
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        if stop.wait(0.1):
            return
        call = _main_thread_call()
        if call is None or last_call is None or call[0] is not last_call[0] or call[1] != last_call[1]:
            # The main thread makes progress, so its next collective or step reports the error. The wait starts again.
            last_call, deadline = call, time.monotonic() + _GRACE_S
    print(
        f"tf_sparse_ps: rank {rank} ends, because it has been inside one TensorFlow call for {_GRACE_S:.0f} s and "
        "cannot raise this error",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def _main_thread_call() -> tuple[types.FrameType, int] | None:
    """Returns the TensorFlow call that the main thread is in and its instruction, or None outside of such calls."""
    frame: types.FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None or not frame.f_code.co_filename.endswith(os.path.join("eager", "execute.py")):
        return None
    return frame, frame.f_lasti
