"""Says which rank died, stopped or does not come, when a collective or a step fails because of one.

When a rank dies, the others stand in an operation, and fail with a text that names nobody; or, when a child of the dead
rank still holds its sockets, they do not fail for as long as the library's timeout. When one does not come, they wait.
Three things know more, and an uncaught error is reported as caused by what they have found:

- `node_watch`: where there are tables that are trained, the ranks of a node see each other in shared memory;
- `liveness_check`: in any job with a key-value store, of a launcher or of rank 0, a rank that has waited too long asks
  all others where they are;
- that store: what one rank has found, or has said before its end, all can read.

A rank that is then still inside a TensorFlow call ends with status 1.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives, CollectivesError, exit_report, registry
from tf_sparse_ps.collectives.key_values import EXIT_REPORT, FOUND, KeyValueStore
from tf_sparse_ps.collectives.processes import ProcessCollectives
from tf_sparse_ps.errors import ExchangeFailed, LeaderDied, RankDied, RankLost, RankStopped
from tf_sparse_ps.failures.liveness_check import LivenessCheck
from tf_sparse_ps.failures.node_watch import NodeWatch

__all__ = [
    "BESIDE",
    "ExchangeFailed",
    "LeaderDied",
    "RankDied",
    "RankLost",
    "RankStopped",
    "explain",
    "failed_beside",
    "report",
    "stop",
    "watch",
]

# What no other rank's end looks like.
_OWN_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
)
# What a step says that fails because communication beside it has: the reason is another error, of another thread.
BESIDE = "communication beside training has failed, for a reason that was printed"
_lock = threading.Lock()
_rank = 0
_key_values: KeyValueStore | None = None
_liveness: LivenessCheck | None = None
_watches: dict[str, NodeWatch] = {}
_beside: BaseException | None = None
_step: Callable[[], int] | None = None


def report(collectives: Collectives, step: Callable[[], int] | None = None) -> None:
    """Lets this process explain its errors, and take part when others ask. Runs no collective.

    It begins when ranks are connected: a rank that ends, or takes another path, before the first step is named, too.

    Args:
      collectives: Of all ranks.
      step: Says which step this process is making, from now on. None: what an earlier call has given, or none yet.
    """
    global _rank, _key_values, _liveness, _step
    with _lock:
        _step = step or _step
        if _key_values is not None or collectives.size == 1:
            return
        _rank, _key_values = collectives.rank, collectives.key_values
        if _key_values.there:
            _liveness = LivenessCheck(collectives, _key_values, _step_in_making, lambda: tuple(_watches.values()))
        _ops.hold_terminate()
        atexit.register(stop)
        previous = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            if isinstance(collectives, ProcessCollectives):
                collectives.failed = True  # it does not wait for the others at its end
            explained = explain(error)
            if explained is not error:
                kind, error, trace = type(explained), explained, explained.__traceback__
            elif isinstance(error, Exception | KeyboardInterrupt) and not _may_be_anothers(error):
                _say(EXIT_REPORT, exit_report.failed(_rank, _reason_of(error)))
            previous(kind, error, trace)

        sys.excepthook = hook


def _step_in_making() -> int:
    return 0 if _step is None else _step()


def watch(job: Any) -> None:
    """Starts to watch the other ranks of a job's node, unless there are none or this process does already."""
    with _lock:
        if job.collectives.local_size > 1 and job.group_path not in _watches:
            assert _key_values is not None  # `report` was called
            _watches[job.group_path] = NodeWatch(job, _key_values)


def failed_beside(error: BaseException) -> None:
    """Notes what communication beside training has failed with, before a step fails and says `BESIDE`."""
    global _beside
    _beside = error


def stop() -> None:
    """At the end of the process: stops watching, and tells the others that this end is none to report."""
    with _lock:
        watches, liveness = list(_watches.values()), _liveness
    for one in (*watches, liveness):
        if one is not None:
            one.stop()
            if getattr(sys, "last_value", None) is None:
                one.leave()


def explain(error: BaseException, timeout_s: float = 2.0) -> BaseException:
    """Returns what this rank knows to be the cause of an error, or the error itself.

    That is a `RankLost`, `RankDied`, `RankStopped` or `ExchangeFailed`, with `error` as its cause.

    Uncaught errors go through here by themselves. A program that catches errors of a step may call it.

    Args:
      error: Raised by a training step.
      timeout_s: How long a death may take to show.
    """
    if not isinstance(error, (tf.errors.OpError, CollectivesError)):
        return error
    with _lock:
        watches, liveness, key_values = list(_watches.values()), _liveness, _key_values
    sources = [one for one in (*watches, liveness) if one is not None]
    began = time.monotonic()
    found: BaseException | None = None
    while sources and found is None and time.monotonic() < began + timeout_s:
        found = next((one.found for one in sources if one.found), None)
        if found is None and key_values is not None and _may_be_anothers(error):
            told = key_values.reason()
            found = RankLost(f"rank {_rank}: {told}") if told else None
        # A death shows soon. What is left of the time is for other nodes, to be told.
        if found is None and time.monotonic() > began + timeout_s / 2:
            found = next(filter(None, (one.stopped() for one in sources)), None)
        time.sleep(0.0 if found else 0.05)
    if found is None:
        return error
    _say(FOUND, str(found).removeprefix(f"rank {_rank}: "))
    found.__cause__ = error
    return found


def _may_be_anothers(error: BaseException) -> bool:
    """Whether another rank's end can look like this."""
    reason = _reason_of(error)
    return isinstance(reason, (tf.errors.OpError, CollectivesError)) and not isinstance(reason, _OWN_ERRORS)


def _reason_of(error: BaseException) -> BaseException:
    return _beside if _beside is not None and BESIDE in str(error) else error


def _say(key: str, text: str) -> None:
    if _key_values is not None:
        _key_values.write_first(key, text)


registry.when_connected(report)
