"""`Watch`: the jobs of a folder at each interval, with the last figures of those that have ended."""

from __future__ import annotations

import dataclasses
import os
import time

from tf_sparse_ps.errors import NotFoundError
from tf_sparse_ps.monitoring import rates, readings
from tf_sparse_ps.monitoring.processes import PssReader
from tf_sparse_ps.monitoring.rates import Rates, Ratios
from tf_sparse_ps.monitoring.readings import GroupReading


@dataclasses.dataclass(frozen=True)
class GroupView:
    """A group at an interval.

    Attributes:
      reading: The last reading of the group. If the group was removed, its state is "ended", and its ranks are dead.
      rates: The rates of the last interval in which the group was running. None: there was none yet.
      ratios: Those of the same interval; without rates, those since the processes began. None: there are no counters.
      pss: The PSS of each rank in bytes, in the order of the ranks; None: it is not known.
    """

    reading: GroupReading
    rates: Rates | None
    ratios: Ratios | None
    pss: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class FolderView:
    """A folder of tables at an interval.

    Attributes:
      folder: Its path.
      time: The moment, in seconds since 1970.
      interval: The seconds since the last look; None: this is the first one.
      free, size: The bytes of its file system that are free, and all; None: there is no such folder.
      groups: The groups.
    """

    folder: str
    time: float
    interval: float | None
    free: int | None
    size: int | None
    groups: tuple[GroupView, ...]


class Watch:
    """Looks at the groups of a folder, and computes rates since the last look."""

    def __init__(self, folder: str, job: str | None = None) -> None:
        """Begins.

        Args:
          folder: The folder of tables.
          job: The name of a job, or of a group, to look at this job alone.
        """
        self._folder, self._job = folder, job
        self._last: dict[str, GroupView] = {}
        self._looked_at: float | None = None
        self._pss = PssReader()

    def look(self) -> FolderView:
        """Reads all groups.

        Raises:
          AccessError: The folder belongs to another user, or others can replace it.
          NotFoundError: The folder has never had the job since this object was made.
        """
        now = time.monotonic()
        interval = None if self._looked_at is None else now - self._looked_at
        found = readings.read_folder(self._folder)
        chosen = [reading for reading in found if self._is_chosen(reading)]
        views = {reading.path: self._view(reading) for reading in chosen}
        removed = {path: _removed(view) for path, view in self._last.items() if path not in views}
        self._last = dict(sorted((removed | views).items()))
        if self._job is not None and not self._last:
            jobs = ", ".join(sorted({reading.job for reading in found})) or "none"
            raise NotFoundError(f"{self._folder} has no tables of a job {self._job!r}. Its jobs: {jobs}")
        self._looked_at = now
        free, size = room(self._folder)
        return FolderView(self._folder, time.time(), interval, free, size, tuple(self._last.values()))

    def _is_chosen(self, reading: GroupReading) -> bool:
        return self._job in (None, reading.job, os.path.basename(reading.path))

    def _view(self, reading: GroupReading) -> GroupView:
        last = self._last.get(reading.path)
        figures = None
        if last is not None and reading.fault is None:
            # A job that ended in this interval worked for a part of it: its figures are those of the last whole one.
            was_running = last.reading.state == reading.state == "running"
            figures = _rates(last.reading, reading) if was_running else None
            if reading.state == "ended" and _is_same_run(last.reading, reading):
                figures = last.rates
        ratios = None
        if figures is not None:
            ratios = figures.ratios
        elif reading.ranks:
            ratios = Ratios.of(rates.totals(reading.reports))
        pss = tuple(
            self._pss.of(rank.report.pid, rank.report.started) if rank.state == "alive" else None
            for rank in reading.ranks
        )
        return GroupView(reading, figures, ratios, pss)


def room(folder: str) -> tuple[int | None, int | None]:
    """Returns the free bytes of a folder's file system, and its size; None: there is no such folder."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None, None
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def _rates(before: GroupReading, after: GroupReading) -> Rates | None:
    # The steps are those that the ranks have counted, so that they are of the same moment as the other counters.
    return rates.between(before.reports, after.reports, after.time - before.time)


def _is_same_run(before: GroupReading, after: GroupReading) -> bool:
    return {rates.identity(report) for report in before.reports} == {rates.identity(report) for report in after.reports}


def _removed(view: GroupView) -> GroupView:
    """Returns the last figures of a group that was removed."""
    ranks = tuple(dataclasses.replace(rank, state="dead", rss=None) for rank in view.reading.ranks)
    reading = dataclasses.replace(view.reading, state="ended", ranks=ranks)
    return dataclasses.replace(view, reading=reading, pss=(None,) * len(ranks))
