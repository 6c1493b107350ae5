"""`TableLifetimes`: frees the tables of a job that no program and no graph uses any more.

A process uses a table as long as the tensor that names it exists (`TableBinding.path_tensor`). Layers hold this tensor,
and every graph that reads or trains the table captures it, so that a concrete function works without its layer. When
the tensor is deleted, the process *releases* the table: it unmaps the table and reports this to the leader. The leader
removes a table when every other rank of its node has released it or has ended. Ranks collect garbage at different
times, so no rank waits for another one.

A thread does this soon after garbage was collected. On the leader, the thread runs until the slowest rank has released
the tables that the leader has released. It is also done before a table is made, and before tables are bound. Steps take
no part in it.

Tables of a named job are unmapped, but never removed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import os
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.config.admission import SKETCH
from tf_sparse_ps.errors import NotFoundError, StateError, TableError, UnavailableError
from tf_sparse_ps.table import groups

if TYPE_CHECKING:
    from tf_sparse_ps.job.session import Session
    from tf_sparse_ps.job.table_binding import TableBinding

MAX_TABLES = 1024  # the largest number of tables in a group
_LOOK_S = 0.05  # between two looks at slower ranks, each of which reads one file per rank
_JOIN_S = 5.0
_SCARCE = 0.25  # if less than this part of the file system is free, garbage is collected before a table is made


@dataclasses.dataclass(frozen=True)
class _Table:
    """A table of the job.

    Attributes:
      ordinal, path, uuid: See `TableBinding`.
      size: The number of tables of the group: 2 with a sketch, which is removed with the table.
    """

    ordinal: int
    path: str
    uuid: str
    size: int


Wait = Callable[[Callable[[], bool], str], None]


class TableLifetimes:
    """Tracks the tables of a job that this process uses."""

    def __init__(self, session: Session, wait: Wait, *, is_leader: bool, removes: bool) -> None:
        """Starts without tables.

        Args:
          session: The session of this rank.
          wait: Waits until its first argument returns True; the second argument names the event.
          is_leader: Whether this process is the group's writer.
          removes: Whether tables that no rank uses are removed, because the job is unnamed.
        """
        self._session, self._wait, self._is_leader, self._removes = session, wait, is_leader, removes
        self._pid = os.getpid()
        # Released tables. Garbage is collected in any thread and between any two instructions. So `_release` only
        # appends, and wakes the thread through a queue, which is reentrant.
        self._released: collections.deque[_Table] = collections.deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # protects the attributes below
        self._used = 0  # the number of tables that this process uses or, on the leader, that any rank uses
        self._unwanted: dict[int, _Table] = {}  # by ordinal: tables that only other ranks use
        self._closed = False
        self._next_collection = 0.0
        self._thread = threading.Thread(target=self._run, name="tsps-tables", daemon=True)

    def add(self, binding: TableBinding) -> None:
        """Registers a table before it is made. It is in use until its tensor is deleted.

        Raises:
          StateError: The job has the largest possible number of tables in use.
          UnavailableError, WaitTimeoutError: Other ranks do not release their tables.
          NoSpaceError: The file system has no space left for the session.
        """
        self.tidy()
        if self._used and self._is_scarce(os.path.dirname(binding.path)):
            gc.collect()
            self.tidy()
        table = _Table(binding.ordinal, binding.path, binding.uuid, 1 if binding.config.admission is None else 2)
        if self._used + table.size > MAX_TABLES:
            self._free(table.size)
        self._session.reserve(binding.ordinal)
        with self._lock:
            self._used += table.size
            if self._thread.ident is None:
                self._thread.start()
        finalizer = weakref.finalize(binding.path_tensor, self._release, table)
        finalizer.atexit = False  # type: ignore[misc]  # at its end, the process releases everything

    def _is_scarce(self, folder: str) -> bool:
        """Returns whether space is scarce. It returns True at most once per second, as collecting garbage is slow."""
        space, now = os.statvfs(folder), time.monotonic()
        if space.f_bavail > space.f_blocks * _SCARCE or now < self._next_collection:
            return False
        self._next_collection = now + 1.0
        return True

    def tidy(self) -> None:
        """Unmaps the tables that this process has released. The leader removes those that all ranks have released."""
        with self._lock:
            if self._closed or not (self._released or self._unwanted):
                return
            with eager_ops("freeing tables") as _ops:
                while self._released:
                    self._unmap(self._released.popleft(), _ops)
                self._remove(_ops)

    def close(self) -> None:
        """Stops freeing tables, at the end of the process."""
        self._closed = True
        self._wake.put(None)
        if self._thread.ident is not None and os.getpid() == self._pid:
            self._thread.join(_JOIN_S)

    def _free(self, size: int) -> None:
        """Frees tables until there is space for `size` more. Raises StateError if this process uses all of them."""
        gc.collect()
        self.tidy()
        if self._used - sum(table.size for table in self._unwanted.values()) + size > MAX_TABLES:
            raise StateError(
                f"a job can have at most {MAX_TABLES} tables at a time, and all of them are in use. Delete layers that "
                "are not needed any more, or let features share a table"
            )

        def is_below_limit() -> bool:
            self.tidy()
            return self._used + size <= MAX_TABLES

        # The other ranks also call this function, and collect their garbage.
        self._wait(is_below_limit, "other ranks to release tables that this rank does not need any more")

    def _release(self, table: _Table) -> None:
        """Records that the tensor of a table was deleted. It runs wherever garbage is collected."""
        if os.getpid() != self._pid or self._closed:
            return
        self._session.release(table.ordinal)
        self._released.append(table)
        self._wake.put(None)

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=_LOOK_S if self._unwanted else None)
            self.tidy()

    # --- under the lock ---

    def _unmap(self, table: _Table, _ops: Any) -> None:
        for path in [table.path, table.path + SKETCH][: table.size]:
            groups.forget(path)
            _ops.forget_table(path)
        if table.size > 1:
            _ops.take_occurrences(np.empty(0, np.int64), table.uuid)  # of gradients that no step has applied
        if not self._removes:
            return
        if self._is_leader:
            self._unwanted[table.ordinal] = table
        else:
            self._used -= table.size

    def _remove(self, _ops: Any) -> None:
        for table in list(self._unwanted.values()):
            if not self._session.released_by_others(table.ordinal):
                continue
            try:
                with eager_ops(f"removing table {table.path}"):
                    _ops.remove_table(table.path, table.uuid)
            except NotFoundError:  # the table was never made
                pass
            except UnavailableError:  # the writer is in the middle of a step of other tables
                continue
            except TableError as error:
                if os.path.exists(table.path):  # no warning if somebody has deleted the table
                    warnings.warn(
                        f"{error}. The table {table.path} stays until the job ends, and uses its memory until then",
                        stacklevel=2,
                    )
            del self._unwanted[table.ordinal]
            self._used -= table.size
