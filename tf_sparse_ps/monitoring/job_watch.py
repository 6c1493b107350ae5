"""`JobWatch`: follows the counters of the ranks that a launcher has started, for its last line."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence

from tf_sparse_ps.errors import TableError
from tf_sparse_ps.monitoring import own_groups, processes, rates
from tf_sparse_ps.node import rank_counters
from tf_sparse_ps.node.rank_counters import RankReport

_EVERY_S = 0.25  # between two readings; a reading of a rank takes 20 microseconds
_LEAST_S = 0.5  # a job that used its tables for less time has no rates
_CAUSES = {
    "ranks": "other ranks of this machine",
    "network": "exchanges between machines",
    "disk": "rows on disk",
}


class JobWatch:
    """Reads the counters of a job's ranks in a thread, until `close`. A group may be removed when the job ends."""

    def __init__(self, folder: str, sessions: Callable[[], Sequence[int]]) -> None:
        """Takes the folder of tables, and a function that returns the sessions of the ranks' processes."""
        self._folder, self._sessions = folder, sessions
        self._first: dict[rates.Identity, RankReport] = {}
        self._last: dict[rates.Identity, RankReport] = {}
        self._paths: dict[rates.Identity, str] = {}
        self._foreign: set[rates.Identity] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-watch", daemon=True)

    def start(self) -> None:
        """Starts to read."""
        self._thread.start()

    def look(self) -> None:
        """Reads the counters of all groups, and keeps those of the job."""
        sessions = set(self._sessions())
        for path in own_groups.paths(self._folder):
            with contextlib.suppress(OSError):  # the group was removed
                for report in rank_counters.read(path):
                    self._take(path, report, sessions)

    def close(self) -> None:
        """Reads a last time, and ends. A second call does nothing."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def has(self, path: str) -> bool:
        """Whether the group of a path is the job's."""
        return path in set(self._paths.values())

    def line(self) -> str:
        """Describes the speed of the job and its largest wait; "" if it used no tables, or only for a moment."""
        paths = {self._paths[identity] for identity in self._last}
        return "; ".join(filter(None, (self._line(path) for path in sorted(paths))))

    def _line(self, path: str) -> str:
        identities = [identity for identity in self._last if self._paths[identity] == path]
        before, after = ([which[identity] for identity in identities] for which in (self._first, self._last))
        seconds = max(report.updated for report in after) - min(report.updated for report in before)
        found = rates.between(before, after, seconds)
        if found is None or seconds < _LEAST_S:
            return ""
        samples = "" if found.samples is None else f"{_number(found.samples)} samples/s, "
        text = f"{_number(found.steps)} steps/s, {samples}{_number(found.ids)} ids/s"
        cause, part = found.largest_wait()
        return f"{text}; the largest wait, {part:.0%} of the time, was for {_CAUSES[cause]}" if part >= 0.005 else text

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._end.wait(_EVERY_S)
            with contextlib.suppress(TableError, OSError):  # such as a folder that is removed meanwhile
                self.look()

    def _take(self, path: str, report: RankReport, sessions: set[int]) -> None:
        identity = rates.identity(report)
        if identity in self._foreign or not report.counters["lookups"]:  # the page has no values yet
            return
        if identity not in self._first:
            if not _is_in(report, sessions):
                self._foreign.add(identity)
                return
            self._paths[identity] = path
            self._first[identity] = report
        self._last[identity] = report


def _is_in(report: RankReport, sessions: set[int]) -> bool:
    """Whether a rank is a process of one of the sessions, each of which has the pid of its first process."""
    if processes.find_same(report.pid, report.started) is None:
        return False
    try:
        return os.getsid(report.pid) in sessions
    except OSError:
        return False


def _number(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
