"""When tables are freed: `TableLifetimes`.

A table is in use in a process as long as the tensor that names it is there (`TableBinding.path_tensor`). Layers hold
it, and every graph that reads or trains the table captures it: a concrete function whose layer is gone still serves.
When the tensor is gone this process has *released* the table: it unmaps it, and says so to the leader. The leader
removes a table that every rank of its node has released, or that has ended. Ranks collect garbage at different times,
so nobody waits for anybody.

A thread does this, soon after garbage was collected, and on the leader until the slowest rank has released what the
leader has; before a table is made, or tables are bound, it is done at once. Steps have no part in it.

Tables of a named job are unmapped, never removed.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.errors import NotFoundError, StateError, TableError, UnavailableError
from tf_sparse_ps.table import groups

if TYPE_CHECKING:
    from tf_sparse_ps.job.session import Session
    from tf_sparse_ps.job.table_binding import TableBinding

MAX_TABLES = 1024  # that a group has places for
_LOOK_S = 0.05  # between two looks at slower ranks: one read of a file for each
_JOIN_S = 5.0
_SCARCE = 0.25  # of the file system: when less is free, garbage is collected before a table is made

Wait = Callable[[Callable[[], bool], str], None]


class TableLifetimes:
    """The tables of a job in this process."""

    def __init__(self, session: Session, wait: Wait, *, is_leader: bool, removes: bool) -> None:
        """Knows of none yet.

        Args:
          session: Of this rank.
          wait: Waits until its first argument says so; the second names what is waited for.
          is_leader: This process is the group's writer.
          removes: The job is unnamed: nobody needs its tables when its ranks do not.
        """
        self._session, self._wait, self._is_leader, self._removes = session, wait, is_leader, removes
        self._pid = os.getpid()
        # Ordinal, path and uuid. Garbage is collected in any thread and between any two instructions, so all that is
        # done there is to append, and to wake the thread by what can be called while another call of it is under way.
        self._released: collections.deque[tuple[int, str, str]] = collections.deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of what follows
        self._used = 0  # tables that are in use here or, on the leader, on any rank
        self._unwanted: dict[int, tuple[str, str]] = {}  # path and uuid by ordinal, on the leader: others are slower
        self._closed = False
        self._next_collection = 0.0
        self._thread = threading.Thread(target=self._run, name="tsps-tables", daemon=True)

    def add(self, binding: TableBinding) -> None:
        """A table is to be made: from now on it is in use, until its tensor is gone.

        Raises:
          StateError: There are too many.
          UnavailableError, WaitTimeoutError: Other ranks do not release theirs.
          NoSpaceError: There is no room to tell the other ranks of it.
        """
        self.tidy()
        if self._used and self._is_scarce(os.path.dirname(binding.path)):
            gc.collect()
            self.tidy()
        if self._used >= MAX_TABLES:
            self._make_place()
        self._session.reserve(binding.ordinal)
        with self._lock:
            self._used += 1
            if self._thread.ident is None:
                self._thread.start()
        known = weakref.finalize(binding.path_tensor, self._release, binding.ordinal, binding.path, binding.uuid)
        known.atexit = False  # type: ignore[misc]  # the process then gives up everything

    def _is_scarce(self, folder: str) -> bool:
        """Whether tables of models that are garbage may be in the way; once a second, since collecting takes time."""
        room, now = os.statvfs(folder), time.monotonic()
        if room.f_bavail > room.f_blocks * _SCARCE or now < self._next_collection:
            return False
        self._next_collection = now + 1.0
        return True

    def tidy(self) -> None:
        """Unmaps what this process has released; the leader removes what all ranks have."""
        with self._lock:
            if self._closed or not (self._released or self._unwanted):
                return
            with eager_ops("freeing tables") as _ops:
                while self._released:
                    self._unmap(*self._released.popleft(), _ops)
                self._remove(_ops)

    def close(self) -> None:
        """At the end of the process: nothing is freed from now on."""
        self._closed = True
        self._wake.put(None)
        if self._thread.ident is not None and os.getpid() == self._pid:
            self._thread.join(_JOIN_S)

    def _make_place(self) -> None:
        gc.collect()
        self.tidy()
        if self._used - len(self._unwanted) >= MAX_TABLES:
            raise StateError(f"a job has at most {MAX_TABLES} tables at a time, and so many are in use")

        def there_is_one() -> bool:
            self.tidy()
            return self._used < MAX_TABLES

        # The others come here, too, and collect.
        self._wait(there_is_one, "other ranks to release tables that this one needs no more")

    def _release(self, ordinal: int, path: str, uuid: str) -> None:
        """Called when the tensor has gone, wherever garbage is collected."""
        if os.getpid() != self._pid or self._closed:
            return
        self._session.release(ordinal)
        self._released.append((ordinal, path, uuid))
        self._wake.put(None)

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=_LOOK_S if self._unwanted else None)
            self.tidy()

    # --- under the lock ---

    def _unmap(self, ordinal: int, path: str, uuid: str, _ops: Any) -> None:
        groups.forget(path)
        _ops.forget_table(path)
        if not self._removes:
            return
        if self._is_leader:
            self._unwanted[ordinal] = (path, uuid)
        else:
            self._used -= 1

    def _remove(self, _ops: Any) -> None:
        for ordinal, (path, uuid) in list(self._unwanted.items()):
            if not self._session.released_by_others(ordinal):
                continue
            try:
                with eager_ops(f"removing table {path}"):
                    _ops.remove_table(path, uuid)
            except NotFoundError:  # it was never made
                pass
            except UnavailableError:  # the writer is in the middle of a step, of other tables
                continue
            except TableError as error:
                if os.path.exists(path):  # not where somebody has removed all of it
                    warnings.warn(f"{error}. It stays until the job ends", stacklevel=2)
            del self._unwanted[ordinal]
            self._used -= 1
