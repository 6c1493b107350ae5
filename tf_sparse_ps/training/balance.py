"""`Balance`: compares the number of rows that each node has of a sharded table.

The nodes are compared when tables are bound and at the end of `fit`, because all ranks meet there anyway. No step pays
for the comparison.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Sequence

from tf_sparse_ps.job.job import Job
from tf_sparse_ps.job.table_binding import TableBinding

WARN_ABOVE = 1.2
_ENOUGH_ROWS = 1000  # with fewer rows per node, a hash alone can exceed WARN_ABOVE


@dataclasses.dataclass(frozen=True)
class Shards:
    """The parts of a sharded table.

    Attributes:
      table: The name of the table.
      rows: The number of rows on each node.
      bytes: The bytes of the rows on each node, in memory and on disk.
    """

    table: str
    rows: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def max_over_mean(self) -> float:
        """The rows of the node that has most, divided by the mean over the nodes; 1 without rows."""
        return max(self.rows) * len(self.rows) / sum(self.rows) if sum(self.rows) else 1.0

    @property
    def uneven(self) -> bool:
        """Whether the largest part is too large, and not by chance."""
        return sum(self.rows) >= _ENOUGH_ROWS * len(self.rows) and self.max_over_mean > WARN_ABOVE


class Balance:
    """Compares the nodes' parts of an optimizer's sharded tables."""

    def __init__(self) -> None:
        """Makes a comparison of no tables."""
        self._job: Job | None = None
        self._tables: list[weakref.ref[TableBinding]] = []
        self._compared: list[Shards] = []

    def add(self, job: Job, tables: Sequence[TableBinding]) -> None:
        """Adds tables, if they are sharded, and compares. Eager, on all ranks, with the same tables."""
        sharded = [table for table in tables if table.placement == "sharded"]
        if sharded:
            self._job = job
            self._tables += map(weakref.ref, sharded)
            self.compare()

    def compare(self) -> None:
        """Compares the nodes. Eager; all ranks call it, unless no table is sharded.

        Warns:
          UserWarning: On rank 0: a node has more than `WARN_ABOVE` times the mean number of rows.
        """
        if self._job is None:
            return
        tables = self._existing()
        local_sizes = {table.ordinal: _size(table) for table in tables} if self._job.is_leader else {}
        all_sizes = self._job.collectives.allgather_object(local_sizes, "tsps.balance")
        node_sizes = [all_sizes[leader] for leader in self._job.leaders]
        self._compared = []
        for table in tables:
            sizes = [node[table.ordinal] for node in node_sizes if table.ordinal in node]
            if len(sizes) == len(node_sizes):  # a leader may have dropped the layer
                rows, size = zip(*sizes, strict=True)
                self._compared.append(Shards(table.config.name, rows, size))
        for shards in self._compared:
            if shards.uneven and self._job.rank == 0:
                warnings.warn(
                    f"the nodes have different numbers of rows of the sharded table {shards.table!r}: "
                    f"{', '.join(map(str, shards.rows))}. The largest is {shards.max_over_mean:.2f} times the mean. "
                    "Steps wait for that node",
                    stacklevel=2,
                )

    def statistics(self) -> dict[str, float]:
        """See `DistributedOptimizer.statistics`."""
        sizes = [_size(table) for table in self._existing()]
        return {
            "sharded_rows": float(sum(rows for rows, _ in sizes)),
            "sharded_bytes": float(sum(size for _, size in sizes)),
            "sharded_max_over_mean": max((shards.max_over_mean for shards in self._compared), default=1.0),
        }

    def _existing(self) -> list[TableBinding]:
        """Returns the sharded tables whose layers still exist."""
        return [table for reference in self._tables if (table := reference()) is not None]


def _size(table: TableBinding) -> tuple[int, int]:
    """Returns the rows and bytes of this node's part."""
    stats = table.reader().stats()
    return int(stats["rows"]), int(stats["bytes"]) + int(stats.get("bytes_on_disk", 0))
