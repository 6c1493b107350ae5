"""Names the rank that died, stopped or is missing, when a collective or a step fails because of it.

If a rank dies, the others fail in an operation, with a message that names no rank. If a child process of the dead rank
still holds its sockets, they only fail after the library's timeout. If a rank is late, they wait. The error of an
uncaught failure is replaced by the cause, which comes from three sources:

- `node_watch`: the ranks of a node that train tables see each other in shared memory.
- `liveness_check`: in a job with a key-value store, a rank that has waited too long asks all others what they do.
- The key-value store: it contains what other ranks have found, and what a rank has reported before its end.

A rank that is still inside a TensorFlow call when the cause is known ends with status 1. `members` contains the
processes of the ranks, `watcher` and `ending` the code that `node_watch` and `liveness_check` share, and `source_line`
the line of the user's program for messages.
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

# Errors of this rank, which the end of another rank never causes.
_OWN_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
)
# The message of a step that fails because a communication thread has failed. That thread has printed its error.
BESIDE = "a communication thread has failed, for a reason that was printed"
_lock = threading.Lock()
_rank = 0
_key_values: KeyValueStore | None = None
_liveness: LivenessCheck | None = None
_watches: dict[str, NodeWatch] = {}
_beside: BaseException | None = None
_step: Callable[[], int] | None = None


def report(collectives: Collectives, step: Callable[[], int] | None = None) -> None:
    """Starts to explain errors of this process, and to answer other ranks' liveness checks. Runs no collective.

    This is called as soon as the ranks are connected, so that a rank that ends or takes another path before the first
    step is named, too.

    Args:
      collectives: The collectives of all ranks.
      step: Returns the step that this process is making. None: the function of an earlier call stays in use.
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
                collectives.failed = True  # this rank does not wait for the others at its end
            explained = explain(error)
            if explained is not error:
                kind, error, trace = type(explained), explained, explained.__traceback__
            elif isinstance(error, Exception | KeyboardInterrupt) and not _may_be_anothers(error):
                _write_first(EXIT_REPORT, exit_report.failed(_rank, _reason_of(error)))
            previous(kind, error, trace)

        sys.excepthook = hook


def _step_in_making() -> int:
    return 0 if _step is None else _step()


def watch(job: Any) -> None:
    """Starts to watch the other ranks of a job's node, if it has other ranks and this process does not watch them."""
    with _lock:
        if job.collectives.local_size > 1 and job.group_path not in _watches:
            assert _key_values is not None  # the caller has called `report` before
            _watches[job.group_path] = NodeWatch(job, _key_values)


def failed_beside(error: BaseException) -> None:
    """Records the error of a communication thread, before a step fails with the message `BESIDE`."""
    global _beside
    _beside = error


def stop() -> None:
    """Stops watching at the end of the process. If it ends without an error, the others do not report its end."""
    with _lock:
        watches, liveness = list(_watches.values()), _liveness
    for watcher in (*watches, liveness):
        if watcher is not None:
            watcher.stop()
            if getattr(sys, "last_value", None) is None:
                watcher.leave()


def explain(error: BaseException, timeout_s: float = 2.0) -> BaseException:
    """Returns the failure of a rank that has caused an error, or the error itself if no such failure is known.

    The failure is a `RankLost`, `RankDied`, `RankStopped` or `ExchangeFailed` whose `__cause__` is `error`. Uncaught
    errors are explained automatically. A program that catches errors of a step may call this function.

    Args:
      error: An error that a training step raised.
      timeout_s: The seconds to wait until the failure of a rank is detected.
    """
    if not isinstance(error, (tf.errors.OpError, CollectivesError)):
        return error
    with _lock:
        watches, liveness, key_values = list(_watches.values()), _liveness, _key_values
    watchers = [watcher for watcher in (*watches, liveness) if watcher is not None]
    began = time.monotonic()
    failure: BaseException | None = None
    while watchers and failure is None and time.monotonic() < began + timeout_s:
        failure = next((watcher.found for watcher in watchers if watcher.found), None)
        if failure is None and key_values is not None and _may_be_anothers(error):
            reason = key_values.reason()
            failure = RankLost(f"rank {_rank}: {reason}") if reason else None
        # Deaths are detected first. A rank that is only stopped is looked for in the second half of the time.
        if failure is None and time.monotonic() > began + timeout_s / 2:
            failure = next(filter(None, (watcher.stopped() for watcher in watchers)), None)
        time.sleep(0.0 if failure else 0.05)
    if failure is None:
        return error
    _write_first(FOUND, str(failure).removeprefix(f"rank {_rank}: "))
    failure.__cause__ = error
    return failure


def _may_be_anothers(error: BaseException) -> bool:
    """Returns whether the end of another rank can have caused an error."""
    reason = _reason_of(error)
    return isinstance(reason, (tf.errors.OpError, CollectivesError)) and not isinstance(reason, _OWN_ERRORS)


def _reason_of(error: BaseException) -> BaseException:
    """Returns the error of the communication thread that a step has failed for, or else the error itself."""
    return _beside if _beside is not None and BESIDE in str(error) else error


def _write_first(key: str, text: str) -> None:
    if _key_values is not None:
        _key_values.write_first(key, text)


registry.when_connected(report)
