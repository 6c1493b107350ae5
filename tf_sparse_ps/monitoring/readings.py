"""`GroupReading`: the tables, counters and processes of a group at one moment."""

from __future__ import annotations

import dataclasses
import os
import re
import time

from tf_sparse_ps import _table
from tf_sparse_ps.errors import TableError
from tf_sparse_ps.monitoring import own_groups, processes
from tf_sparse_ps.node import rank_counters
from tf_sparse_ps.node.rank_counters import RankReport

_JOB = re.compile(r"(.+)-n(\d+)")


@dataclasses.dataclass(frozen=True)
class TableSize:
    """The size of a table on this machine.

    Attributes:
      name: The name.
      rows: The number of rows.
      memory: The bytes in memory.
      disk: The bytes on disk.
      index_load: The share of entries of the index that are in use.
      evicted, admitted, dropped: The rows that steps have evicted; the rows that were made for keys that had occurred
        often enough; the gradients of other keys. All since the table was made.
    """

    name: str
    rows: int
    memory: int
    disk: int
    index_load: float
    evicted: int
    admitted: int
    dropped: int


@dataclasses.dataclass(frozen=True)
class RankReading:
    """A rank.

    Attributes:
      report: Its counters.
      state: "alive"; "dead"; or "unknown", if the job runs in another PID namespace.
      rss: The bytes of its memory that are resident; None: it is not alive here.
    """

    report: RankReport
    state: str
    rss: int | None


@dataclasses.dataclass(frozen=True)
class GroupReading:
    """A group at one moment.

    Attributes:
      path: The folder of the group.
      job: The name of the job; of an unnamed job, its identity.
      node: The number of the node.
      time: The moment, in seconds of `time.monotonic`.
      state: "running"; "ended", if no process writes the tables; or "damaged".
      fault: Why it is damaged; None: it is not.
      step: The committed step.
      tables: The tables.
      ranks: The ranks of this node, in their order.
    """

    path: str
    job: str
    node: int
    time: float
    state: str
    fault: str | None = None
    step: int | None = None
    tables: tuple[TableSize, ...] = ()
    ranks: tuple[RankReading, ...] = ()

    @property
    def reports(self) -> list[RankReport]:
        """The counters of all ranks."""
        return [rank.report for rank in self.ranks]


def read_folder(folder: str) -> list[GroupReading]:
    """Reads all groups of this user. No folder: no groups.

    Raises:
      AccessError: The folder belongs to another user, or others can replace it.
    """
    readings = [read_group(path) for path in own_groups.paths(folder)]
    return [reading for reading in readings if os.path.isdir(reading.path)]  # without those that were just removed


def read_group(path: str) -> GroupReading:
    """Reads a group. If it cannot be read, the reading says why."""
    match = _JOB.fullmatch(os.path.basename(path))
    job, node = (match[1], int(match[2])) if match else (os.path.basename(path), 0)
    moment, fault, step, tables, is_running = time.monotonic(), None, None, tuple[TableSize, ...](), False
    try:
        is_running = _table.has_writer(path)
        group = _table.Group.open(path)
        tables, step = _sizes(group), group.step()
    except (TableError, OSError) as error:
        fault = str(error)
    state = "damaged" if fault is not None else "running" if is_running else "ended"
    return GroupReading(path, job, node, moment, state, fault, step, tables, _ranks(path, is_running=is_running))


def _sizes(group: _table.Group) -> tuple[TableSize, ...]:
    return tuple(
        TableSize(
            info["name"],
            stats["rows"],
            stats["bytes"],
            stats["bytes_on_disk"],
            own_groups.index_load(stats),
            stats["evicted_unused"] + stats["evicted_excess"],
            stats["admitted"],
            stats["gradients_dropped"],
        )
        for _, info, stats in own_groups.rows_of(group)
    )


def _ranks(path: str, *, is_running: bool) -> tuple[RankReading, ...]:
    try:
        reports = rank_counters.read(path)
    except OSError:  # the group was removed
        return ()
    found = [processes.find_same(report.pid, report.started) for report in reports]
    # The writer of a running group is a rank. If no rank is found, their pids are of another PID namespace.
    absent = "unknown" if is_running and not any(found) else "dead"
    return tuple(
        RankReading(report, absent if process is None else "alive", None if process is None else process.rss)
        for report, process in zip(reports, found, strict=True)
    )
