"""Ends operations of TensorFlow's collective runtime that other ranks do not reach in time.

The runtime's own timeouts are not used: for each operation they need a thread that sleeps until the timeout (TensorFlow
2.15 and 2.21), which is 60,000 threads at 100 operations per second and a timeout of ten minutes. Instead, one thread
of the process looks at the operations in flight. If one has waited too long, the thread aborts all of them permanently,
as the runtime does. An operation does not time out while the awaited ranks report progress (`eager_operations.py`).
"""

from __future__ import annotations

import atexit
import threading
import time

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _tensorflow
from tf_sparse_ps.collectives import eager_operations
from tf_sparse_ps.collectives.timeout import timeout_s

_LONGEST_LOOK_S = 1.0
_SHORT_GRACE_S = 5.0
_lock = threading.Lock()
_stop = threading.Event()
_thread: threading.Thread | None = None


def start(rank: int, grace_s: float) -> None:
    """Starts the thread, once per process.

    Args:
      rank: The rank of this process, for the message.
      grace_s: The seconds that an operation may wait longer than TFSPS_TIMEOUT_S, so that the ranks can find out which
        rank is missing (`failures.liveness_check`). 5 s are enough with a short TFSPS_TIMEOUT_S, because the ranks then
        look more often.
    """
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_watch, args=(rank, grace_s), name="tsps-operations", daemon=True)
            _thread.start()
            atexit.register(_end)


def _end() -> None:
    _stop.set()
    if _thread is not None:
        _thread.join(1.0)


def _watch(rank: int, grace_s: float) -> None:
    limit = timeout_s()
    while not _stop.wait(min(limit / 10, _LONGEST_LOOK_S)):
        limit = timeout_s()
        grace = min(grace_s, max(_SHORT_GRACE_S, limit / 3))
        now_ns = time.monotonic_ns()
        begins = [(begin, operation) for operation, begin in eager_operations.in_flight()]
        begins += [(begin, operation) for operation, begin, _ in _ops.in_flight()]
        begin_ns, operation = min(begins, default=(now_ns, ""))
        longest = (now_ns - begin_ns) * 1e-9
        if (now_ns - eager_operations.begin_of_silence_ns(begin_ns)) * 1e-9 > limit + grace:
            _tensorflow.abort_collectives(
                tf.errors.DEADLINE_EXCEEDED,
                f"rank {rank} has waited {longest:.0f} s for other ranks in operation '{operation}', longer than "
                f"TFSPS_TIMEOUT_S allows. Find out why they did not reach it, and start the job again",
            )
            return
