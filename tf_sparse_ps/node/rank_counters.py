"""The counters of the ranks of a group, which any process may read: while the job runs, and after it was killed.

Each rank counts in a file of the group's folder (cc/core/group/rank_counters.h). docs/metrics.md lists the counters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re

from tf_sparse_ps import _table
from tf_sparse_ps.errors import TableError

NAMES: tuple[str, ...] = tuple(_table.rank_counter_names())
_FILE = re.compile(r"\.counters-([0-9]{4})")


@dataclasses.dataclass(frozen=True)
class RankReport:
    """The counters of a rank.

    Attributes:
      rank: The rank, among all ranks of the job.
      size: The number of ranks of the job.
      local_rank: The local rank.
      pid: The process, in the PID namespace in which it runs.
      started: When the process started, in clock ticks since boot.
      updated: When the counters were last stored, in seconds since 1970. They are stored at lookups and steps.
      activity: What the rank is doing, if that takes long; "" while it trains.
      counters: The counters since the process began, by name.
    """

    rank: int
    size: int
    local_rank: int
    pid: int
    started: int
    updated: float
    activity: str
    counters: dict[str, int]


def path(group_path: str, local_rank: int) -> str:
    """Returns the file of a rank."""
    return os.path.join(group_path, f".counters-{local_rank:04d}")


def read(group_path: str) -> list[RankReport]:
    """Returns the counters of all ranks of a group, by rank. Files that cannot be read are passed over."""
    reports = []
    for name in sorted(os.listdir(group_path)):
        if not _FILE.fullmatch(name):
            continue
        with contextlib.suppress(TableError, OSError):
            found = _table.rank_counters(os.path.join(group_path, name))
            reports.append(RankReport(updated=found.pop("updated_ns") * 1e-9, **found))
    return sorted(reports, key=lambda report: report.rank)
