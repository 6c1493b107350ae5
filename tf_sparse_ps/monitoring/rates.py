"""`Rates`: what the ranks of a group did between two readings of their counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tf_sparse_ps.node.rank_counters import NAMES, RankReport

Identity = tuple[int, int, int]  # rank, pid, start: the counters of a process begin with it


@dataclasses.dataclass(frozen=True)
class Ratios:
    """Shares of counts. None: nothing was counted.

    Attributes:
      unique: The unique ids of training steps, of all their ids.
      device_cache: The unique ids whose rows were on the device, of those that were looked up there.
      tier: The rows that had been read from disk before they were needed, of the rows that were needed from disk.
      lookahead: The rows of other nodes that had come before their batch, of those that were needed.
    """

    unique: float | None
    device_cache: float | None
    tier: float | None
    lookahead: float | None

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Ratios:
        """Returns the ratios of counts, by the names of the counters."""
        needed = counts["rows_read_late"] + counts["rows_read_before"]
        hits = counts["cache_lookups"] - counts["cache_misses"]
        return cls(
            _ratio(counts["unique_ids"], counts["ids_trained"]),
            _ratio(hits, counts["cache_lookups"]),
            _ratio(counts["rows_read_before"], needed),
            _ratio(counts["rows_pulled_before"], counts["rows_pulled"]),
        )


@dataclasses.dataclass(frozen=True)
class Rates:
    """Figures per second, of all ranks of a node together.

    Attributes:
      steps, ids, rows_updated: Steps, ids that were looked up, and rows that steps wrote.
      samples: Samples that `fit` has trained. None: no rank has trained samples in a `fit`.
      shared, sent, received, disk: Bytes of gradients that were put into shared memory, sent to other nodes and
        received; and bytes that were read from disk.
      waits: The share of time that a rank waited, at most 1, by cause; the mean over the ranks. The causes are "ranks"
        (other ranks of the node), "network" (exchanges between nodes, without the part in which the rank computed) and
        "disk".
      ratios: The ratios of the counts of this time.
    """

    steps: float
    ids: float
    rows_updated: float
    samples: float | None
    shared: float
    sent: float
    received: float
    disk: float
    waits: dict[str, float]
    ratios: Ratios

    def per_second(self) -> dict[str, float | None]:
        """Returns the figures per second, by the names that `tf-sparse-ps top --json` gives them."""
        return {
            "steps": self.steps,
            "samples": self.samples,
            "ids_looked_up": self.ids,
            "rows_updated": self.rows_updated,
            "bytes_shared": self.shared,
            "bytes_sent": self.sent,
            "bytes_received": self.received,
            "disk_bytes": self.disk,
        }

    def largest_wait(self) -> tuple[str, float]:
        """Returns the cause of the largest wait, and its share of time."""
        return max(self.waits.items(), key=lambda wait: wait[1])


def totals(reports: Sequence[RankReport]) -> dict[str, int]:
    """Returns the sums of counters over ranks, by name. Counters that an older library lacks are 0."""
    return {name: sum(report.counters.get(name, 0) for report in reports) for name in NAMES}


def between(
    before: Sequence[RankReport], after: Sequence[RankReport], seconds: float, steps: float | None = None
) -> Rates | None:
    """Returns the rates between two readings of the ranks of a node.

    Args:
      before, after: The counters of the ranks. Only processes that are in both are counted.
      seconds: The time between the readings.
      steps: The steps in this time; None: the most steps that a rank has counted.

    Returns:
      The rates. None: no process is in both, or no time has passed.
    """
    earlier = {identity(report): report for report in before}
    pairs = [(earlier[identity(report)], report) for report in after if identity(report) in earlier]
    if not pairs or seconds <= 0:
        return None
    deltas = [_delta(first, last) for first, last in pairs]
    counts = {name: sum(delta[name] for delta in deltas) for name in NAMES}
    if steps is None:
        steps = max(delta["step"] for delta in deltas)
    # A custom loop counts none, even if a `fit` before it did.
    has_samples = bool(counts["samples_trained"]) or (
        not steps and any(report.counters.get("samples_trained", 0) for _, report in pairs)
    )
    return Rates(
        steps=steps / seconds,
        ids=counts["ids_looked_up"] / seconds,
        rows_updated=counts["rows_written"] / seconds,
        samples=counts["samples_trained"] / seconds if has_samples else None,
        shared=counts["bytes_shared"] / seconds,
        sent=counts["bytes_sent"] / seconds,
        received=counts["bytes_received"] / seconds,
        disk=counts["disk_bytes"] / seconds,
        waits=_waits(deltas, seconds),
        ratios=Ratios.of(counts),
    )


def identity(report: RankReport) -> Identity:
    """Returns what identifies the process of a rank."""
    return report.rank, report.pid, report.started


def _delta(first: RankReport, last: RankReport) -> dict[str, int]:
    # A rank stores its counters one by one, so a reader may see one of them from before another. None falls, but the
    # step does when a checkpoint is restored.
    return {name: max(last.counters.get(name, 0) - first.counters.get(name, 0), 0) for name in NAMES}


def _waits(deltas: Sequence[Mapping[str, int]], seconds: float) -> dict[str, float]:
    """Returns the mean share of time that a rank waited. A wait is counted when it ends, so it may be longer."""
    of_ranks = [
        {
            "ranks": delta["waited_ns"],
            "network": max(delta["sending_ns"] - delta["overlapped_ns"], 0),
            "disk": delta["disk_waited_ns"],
        }
        for delta in deltas
    ]
    return {
        cause: sum(min(1e-9 * waited_ns[cause] / seconds, 1.0) for waited_ns in of_ranks) / len(of_ranks)
        for cause in of_ranks[0]
    }


def _ratio(part: int, whole: int) -> float | None:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else None
