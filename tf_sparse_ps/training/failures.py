"""Says which process died or stopped, when a collective or a step fails because one did.

When a rank dies, the others stand in a Horovod operation, and fail with a text of Gloo that names nobody; or, when a
child of the dead rank still holds its sockets, they do not fail for as long as Gloo's timeout. So every rank watches
the others of its node from a thread, by the locks that they hold (core/rank_file.h):

- when one is lost, the rank's process id and step are printed at once: launchers end the remaining ranks within a
  second, sometimes before Python can report the error that Horovod raised;
- an uncaught error is reported as caused by that death, or by a rank that is found stopped;
- a rank that is then still inside a TensorFlow call ends with status 1.

The same happens when the merge of gradients has failed in this rank, say because another did not come in time: the
error itself cannot be raised before Horovod gives up its operations of the same step.

A rank of another node cannot be seen: there Horovod's error stands for itself, and its launcher says which process
ended. Unless that rank has said why, to all (`Collectives.last_words`): then that is the cause, on every node.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import types
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _table
from tf_sparse_ps.collectives import Collectives, CollectivesError
from tf_sparse_ps.errors import TableError
from tf_sparse_ps.table_binding import eager_ops

_POLL_S = 0.025  # a look costs 5 us per rank
_GRACE_S = 4.0
_OWN_FAILURE_S = 1.0  # how long to wait for a failure of this rank's own, once another's is there
# What no other rank's end looks like.
_OWN_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
)
_lock = threading.Lock()
_watches: dict[str, Watch] = {}
_explained_for: list[Collectives] = []


class RankDied(RuntimeError):
    """A rank of this node is gone; the message names it, its process id and its step."""


class LeaderDied(RankDied):
    """The process that writes this node's tables is gone."""


class RankStopped(RuntimeError):
    """A rank of this node has been stopped (SIGSTOP, a debugger) for longer than the others wait."""


class ExchangeFailed(RuntimeError):
    """The ranks of this node could not merge their gradients; the message names the rank that did not come, or why."""


class RankEnded(RuntimeError):
    """A rank has ended with an error that it told all others; the message is what it said."""


class Watch:
    """A thread that waits for the death of another rank of this node. Started by `watch`."""

    def __init__(self, job: Any) -> None:
        """Watches the ranks that have joined the exchange of `job`'s node."""
        self.found: RankDied | RankEnded | ExchangeFailed | None = None
        self._group, self._node, self._rank = job.group_path, job.node, job.rank
        self._leader, self._last_words = job.leaders[job.node], job.collectives.last_words
        self._ranks = _table.NodeRanks.open(job.exchange_path, job.collectives.local_size)
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tsps-rank-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join(1.0)

    def leave(self) -> None:
        """Tells the other ranks of the node that this one needs them no more."""
        with contextlib.suppress(TableError), eager_ops(f"leaving the exchange of {self._group}") as _ops:
            _ops.leave_exchange(self._group)

    def wait(self, timeout_s: float) -> RankDied | RankEnded | ExchangeFailed | None:
        """What to raise for a rank's death, which the kernel may show a moment after the sockets are closed."""
        self._ready.wait(timeout_s)
        return self.found

    def stopped(self) -> RankStopped | None:
        """What to raise for a rank that is stopped, if there is one."""
        for one in self._ranks.look():
            state = _table.process_state(one.pid) if one.alive and one.rank != self._rank else ""
            if state.startswith("stopped"):
                return RankStopped(
                    f"rank {self._rank}: rank {one.rank} of node {self._node} (pid {one.pid}) is {state}; step "
                    f"{one.step} is the last it has come to"
                )
        return None

    def _run(self) -> None:
        # Through the module that has no TensorFlow in it: a failed op would be logged every time.
        group = _table.Group.open(self._group)
        failed_since = None
        while not self._stop.wait(_POLL_S):
            ranks = self._ranks.look()
            # This rank's own failure first: where all wait for one, each says so for itself.
            failed = sorted((one for one in ranks if one.failure), key=lambda one: one.rank != self._rank)
            if failed:
                failed_since = failed_since or time.monotonic()
                waited = time.monotonic() > failed_since + _OWN_FAILURE_S
                if waited or failed[0].rank == self._rank or not failed[0].alive:
                    self._report(self._failure_of(failed[0]))
                    return
                continue
            dead = [one for one in ranks if not one.alive and not one.left and one.rank != self._rank]
            if dead:
                self._report(self._death_of(dead[0], group.info()["step"]))
                return

    def _death_of(self, dead: Any, step: int) -> RankDied | RankEnded:
        if (said := self._last_words()) is not None:
            return RankEnded(f"rank {self._rank}: {said}")
        if dead.rank == self._leader:
            return LeaderDied(
                f"rank {self._rank}: the leader of node {self._node} (pid {dead.pid}) died after step {step} of "
                f"{self._group}; step {step + 1} will not be made"
            )
        return RankDied(
            f"rank {self._rank}: rank {dead.rank} of node {self._node} (pid {dead.pid}) died in step {dead.step}; the "
            f"tables are as of step {step}"
        )

    def _failure_of(self, failed: Any) -> ExchangeFailed:
        if failed.rank == self._rank:
            return ExchangeFailed(f"rank {self._rank}: {failed.failure}")
        return ExchangeFailed(
            f"rank {self._rank}: rank {failed.rank} of node {self._node} (pid {failed.pid}) failed in step "
            f"{failed.step}: {failed.failure}"
        )

    def _report(self, found: RankDied | RankEnded | ExchangeFailed) -> None:
        self.found = found
        self._ready.set()
        print(f"tf_sparse_ps: {found}", file=sys.stderr, flush=True)
        where = _main_thread_call()
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if self._stop.wait(0.1):
                return
            now = _main_thread_call()
            if now is None or where is None or now[0] is not where[0] or now[1] != where[1]:
                # It moves: its next collective or step reports the error. Look again from here.
                where, deadline = now, time.monotonic() + _GRACE_S
        print(
            f"tf_sparse_ps: rank {self._rank} ends: it has been inside one TensorFlow call since then",
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


def report(collectives: Collectives) -> None:
    """Lets uncaught errors of this process be reported by their cause, once."""
    with _lock:
        if _explained_for:
            return
        _explained_for.append(collectives)
        previous = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            explained = explain(error)
            if explained is not error:
                kind, error, trace = type(explained), explained, explained.__traceback__
            previous(kind, error, trace)

        sys.excepthook = hook


def watch(job: Any) -> None:
    """Starts to watch the other ranks of a job's node, unless there are none or this process does already."""
    with _lock:
        if job.collectives.local_size == 1 or job.group_path in _watches:
            return
        if not _watches:
            atexit.register(stop)
        _watches[job.group_path] = Watch(job)


def stop() -> None:
    """At the end of the process: stops watching, and tells the others that this end is none to report."""
    with _lock:
        watches = list(_watches.values())
    for one in watches:
        one.stop()
        if getattr(sys, "last_value", None) is None:
            one.leave()


def explain(error: BaseException, timeout_s: float = 2.0) -> BaseException:
    """Returns what this rank knows to be the cause of an error, or the error itself.

    That is a `RankEnded`, `RankDied`, `RankStopped` or `ExchangeFailed`, with `error` as its cause.

    Uncaught errors go through here by themselves. A program that catches errors of a step may call it.

    Args:
      error: Raised by a training step.
      timeout_s: How long a death may take to show.
    """
    if not isinstance(error, (tf.errors.OpError, CollectivesError)):
        return error
    with _lock:
        watches, told = list(_watches.values()), [one.last_words() for one in _explained_for]
    for text in () if isinstance(error, _OWN_ERRORS) else filter(None, told):
        ended = RankEnded(text)
        ended.__cause__ = error
        return ended
    for one in watches:
        explained = one.wait(timeout_s) or one.stopped()
        if explained is not None:
            explained.__cause__ = error
            return explained
    return error
