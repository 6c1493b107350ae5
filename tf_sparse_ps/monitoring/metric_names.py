"""The names of the metrics that `tf-sparse-ps metrics` exports. docs/metrics.md lists them."""

from __future__ import annotations

import dataclasses

from tf_sparse_ps.node.rank_counters import NAMES

PREFIX = "tsps_"
_NS = "_ns"
_BYTES = "bytes_"
_STEP = "step"  # a gauge: restoring a checkpoint sets it back


@dataclasses.dataclass(frozen=True)
class Counter:
    """The metric of a counter of ranks.

    Attributes:
      name: The name of the metric.
      factor: The metric is the counter times this factor.
    """

    name: str
    factor: float


def _of(counter: str) -> Counter:
    if counter.endswith(_NS):
        return Counter(f"{PREFIX}{counter.removesuffix(_NS)}_seconds_total", 1e-9)
    if counter.startswith(_BYTES):
        counter = f"{counter.removeprefix(_BYTES)}_bytes"
    return Counter(f"{PREFIX}{counter}_total", 1)


COUNTERS: dict[str, Counter] = {name: _of(name) for name in NAMES if name != _STEP}

# The gauges: their labels, and what they are.
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "tsps_step": (("job", "node"), "The committed step of the tables."),
    "tsps_running": (("job", "node"), "1 if a process writes the tables, otherwise 0."),
    "tsps_damaged": (("job", "node"), "1 if the tables cannot be read, otherwise 0."),
    "tsps_ranks": (("job", "node"), "The ranks of the node that have counters."),
    "tsps_ranks_alive": (("job", "node"), "The ranks that are alive, without those of another PID namespace."),
    "tsps_ranks_unknown": (("job", "node"), "The ranks of another PID namespace."),
    "tsps_rank_alive": (("job", "node", "rank"), "1 if the rank is alive here, otherwise 0."),
    "tsps_rank_resident_bytes": (("job", "node", "rank"), "The resident memory of the rank, with shared memory."),
    "tsps_rank_updated_timestamp_seconds": (("job", "node", "rank"), "When the rank last stored its counters."),
    "tsps_table_rows": (("job", "node", "table"), "The rows of the table on this machine."),
    "tsps_table_memory_bytes": (("job", "node", "table"), "The bytes of the table in memory."),
    "tsps_table_index_load": (("job", "node", "table"), "The share of entries of the table's index in use, 0 to 1."),
    "tsps_table_disk_bytes": (("job", "node", "table"), "The bytes of the table on disk."),
    "tsps_folder_free_bytes": (("folder",), "The free bytes of the file system of the folder of tables."),
    "tsps_folder_size_bytes": (("folder",), "The size of the file system of the folder of tables."),
}
