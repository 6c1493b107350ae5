"""How evenly the rows of sharded tables lie on the machines of a job.

Machines are compared where all ranks are anyway, when tables are bound and at the end of `fit`: no step pays for it.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Sequence

from tf_sparse_ps.job.job import Job
from tf_sparse_ps.job.table_binding import TableBinding

WARN_ABOVE = 1.2
# Of fewer rows per machine a hash may well put that many more on one of them.
_ENOUGH_ROWS = 1000


@dataclasses.dataclass(frozen=True)
class Shards:
    """A sharded table.

    Attributes:
      table: Its name.
      rows: On each node.
      bytes: Memory and disk that they take there.
    """

    table: str
    rows: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def max_over_mean(self) -> float:
        """Rows of the node that has most, in terms of their mean over the nodes; 1 without rows."""
        return max(self.rows) * len(self.rows) / sum(self.rows) if sum(self.rows) else 1.0

    @property
    def uneven(self) -> bool:
        """Whether that is more than chance makes it, and than a machine should be ahead of the others."""
        return sum(self.rows) >= _ENOUGH_ROWS * len(self.rows) and self.max_over_mean > WARN_ABOVE


class Balance:
    """Compares the nodes' parts of an optimizer's sharded tables."""

    def __init__(self) -> None:
        """Knows no table yet."""
        self._job: Job | None = None
        self._tables: list[weakref.ref[TableBinding]] = []
        self._compared: list[Shards] = []

    def add(self, job: Job, tables: Sequence[TableBinding]) -> None:
        """Compares these from now on, if they are sharded. Eager, on all ranks, with the same tables."""
        sharded = [table for table in tables if table.placement == "sharded"]
        if sharded:
            self._job = job
            self._tables += map(weakref.ref, sharded)
            self.compare()

    def compare(self) -> None:
        """Compares the nodes, and warns on rank 0 of what is uneven. Eager; all ranks call it, or there are no tables.

        Warns:
          UserWarning: A node has more than `WARN_ABOVE` times the rows that nodes have in the mean.
        """
        if self._job is None:
            return
        there = [table for one in self._tables if (table := one()) is not None]
        own = {table.ordinal: _size(table) for table in there} if self._job.is_leader else {}
        found = self._job.collectives.allgather_object(own, "tsps.balance")
        of_nodes = [found[leader] for leader in self._job.leaders]
        self._compared = []
        for table in there:
            sizes = [one[table.ordinal] for one in of_nodes if table.ordinal in one]
            if len(sizes) == len(of_nodes):  # a layer that a leader has dropped has no rows to speak of
                rows, size = zip(*sizes, strict=True)
                self._compared.append(Shards(table.config.name, rows, size))
        for one in self._compared:
            if one.uneven and self._job.rank == 0:
                warnings.warn(
                    f"sharded table {one.table!r} lies unevenly: its nodes have {', '.join(map(str, one.rows))} rows, "
                    f"the largest {one.max_over_mean:.2f} times the mean. Steps wait for that node",
                    stacklevel=2,
                )

    def statistics(self) -> dict[str, float]:
        """See `DistributedOptimizer.statistics`."""
        sizes = [_size(table) for one in self._tables if (table := one()) is not None]
        return {
            "sharded_rows": float(sum(rows for rows, _ in sizes)),
            "sharded_bytes": float(sum(size for _, size in sizes)),
            "sharded_max_over_mean": max((one.max_over_mean for one in self._compared), default=1.0),
        }


def _size(table: TableBinding) -> tuple[int, int]:
    """Rows and bytes of this node's part."""
    stats = table.reader().stats()
    return int(stats["rows"]), int(stats["bytes"]) + int(stats.get("bytes_on_disk", 0))
