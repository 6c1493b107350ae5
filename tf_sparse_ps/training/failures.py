"""Says which process died, when a collective or a step fails because one did.

When the leader of a node dies, the other ranks stand in a Horovod operation, and fail with a text of Gloo that names
nobody; or, when a child of the leader still holds its sockets, they do not fail for as long as Gloo's timeout.
So every other rank of the node watches the leader's writer lock from a thread:

- when the lock is lost, the rank's process id and the step are printed at once: launchers end the
  remaining ranks within a second, sometimes before Python can report the error that Horovod raised;
- an uncaught error is reported as caused by the leader's death;
- a rank that is then still inside a TensorFlow call ends with status 1.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import types
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _table
from tf_sparse_ps.collectives import CollectivesError

_POLL_S = 0.025  # a look costs 8 us
_GRACE_S = 4.0
_lock = threading.Lock()
_watches: dict[str, Watch] = {}


class LeaderDied(RuntimeError):
    """The process that writes this node's tables is gone; the message names its process id and the step."""


class Watch:
    """A thread that waits for the death of a group's writer. Started by `watch`."""

    def __init__(self, job: Any) -> None:
        """Watches the writer of `job`'s group."""
        self.death: str | None = None
        self._path, self._node, self._rank = job.group_path, job.node, job.rank
        self._stop = threading.Event()
        self._dead = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tsps-leader-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join(1.0)

    def wait_for_death(self, timeout_s: float) -> str | None:
        """The report of the writer's death, which the kernel may show a moment after the sockets are closed."""
        self._dead.wait(timeout_s)
        return self.death

    def _run(self) -> None:
        # Through the module that has no TensorFlow in it: a failed op would be logged every time.
        group = _table.Group.open(self._path)
        while not self._stop.wait(_POLL_S):
            info = group.info()
            if not info["writer_alive"]:
                if os.path.exists(self._path):  # else the leader has ended as it should
                    self._report(info)
                return

    def _report(self, info: dict[str, Any]) -> None:
        self.death = (
            f"rank {self._rank}: the leader of node {self._node} (pid {info['writer_pid']}) died after step "
            f"{info['step']} of {self._path}; step {info['step'] + 1} will not be made"
        )
        self._dead.set()
        print(f"tf_sparse_ps: {self.death}", file=sys.stderr, flush=True)
        where = _main_thread_call()
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if self._stop.wait(0.1):
                return
            now = _main_thread_call()
            if now is None or now != where:
                # It moves: its next collective or step reports the error. Look again from here.
                where, deadline = now, time.monotonic() + _GRACE_S
        print(
            f"tf_sparse_ps: rank {self._rank} ends: it has been inside one TensorFlow call since the leader died",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


def _main_thread_call() -> tuple[int, int] | None:
    """Identifies the TensorFlow call that the main thread is in, or None when it is in none."""
    frame: types.FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None or not frame.f_code.co_filename.endswith(os.path.join("eager", "execute.py")):
        return None
    return id(frame), frame.f_lasti


def watch(job: Any) -> None:
    """Starts to watch the writer of a job's group, unless this process is it or watches already."""
    with _lock:
        if job.is_leader or job.group_path in _watches:
            return
        if not _watches:
            previous = sys.excepthook

            def report(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
                explained = explain(error)
                if explained is not error:
                    kind, error, trace = type(explained), explained, explained.__traceback__
                previous(kind, error, trace)

            sys.excepthook = report
            atexit.register(stop)
        _watches[job.group_path] = Watch(job)


def stop() -> None:
    """Stops watching, at the end of the process."""
    with _lock:
        watches = list(_watches.values())
    for one in watches:
        one.stop()


def explain(error: BaseException, timeout_s: float = 2.0) -> BaseException:
    """Returns a `LeaderDied` caused by `error` when the leader of this node is dead, else `error`.

    Uncaught errors go through here by themselves. A program that catches errors of a step may call it.

    Args:
      error: Raised by a training step.
      timeout_s: How long the death may take to show.
    """
    if not isinstance(error, (tf.errors.OpError, CollectivesError)):
        return error
    with _lock:
        watches = list(_watches.values())
    for one in watches:
        death = one.wait_for_death(timeout_s)
        if death is not None:
            explained = LeaderDied(death)
            explained.__cause__ = error
            return explained
    return error
