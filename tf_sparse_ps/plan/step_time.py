"""The time of the tables' part of a step, and its bytes on the network and from disk.

A step of one machine looks up rows, adds up the gradients of a key, and updates rows. Ranks share the machine's cores,
so their work adds up. With several machines, the formulas of docs/scaling.md give the bytes that a machine sends:

- A replicated table gathers the merged gradients of the other machines: H - 1 times the distinct keys of a machine.
- A sharded table pulls rows of other machines' shards and pushes gradients to them: (H - 1) / H of the distinct keys,
  twice.

A sorted key takes as many bits as the largest of 128 differences needs. Two machines alone use the directions of each
of their connections alternately, so the exchange takes longer than its bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tf_sparse_ps.config import Sharded, Tiered
from tf_sparse_ps.plan import memory
from tf_sparse_ps.plan.configuration import PlanConfig, PlannedTable
from tf_sparse_ps.plan.costs import LARGE, Costs
from tf_sparse_ps.plan.memory import TableBytes
from tf_sparse_ps.plan.skew import Skew

PAGE = 4096  # bytes of a read from disk
_SPARE = 1.25  # a step of a tiered table leaves space for so many times the rows that it brings in
_LONGEST_GAP = math.log(128) + 0.577  # of 128 gaps of sorted keys, in mean gaps
_BITS = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass(frozen=True)
class TableStep:
    """A table's part of a step, on one machine.

    Attributes:
      ids: The ids of all its ranks.
      distinct: The distinct keys among them.
      updated: The rows that the machine updates: those of all machines, or of its shard.
      sent_bytes: The bytes that the machine sends.
      disk_reads: The rows that are read from disk.
      disk_bytes: The bytes that are read from disk, 4 KiB per row.
      lookup_ms, merge_ms, update_ms: The time of lookups, of adding gradients up, and of updates.
    """

    ids: float
    distinct: float
    updated: float
    sent_bytes: float
    disk_reads: float
    lookup_ms: float
    merge_ms: float
    update_ms: float

    @property
    def disk_bytes(self) -> float:
        """The bytes that are read from disk."""
        return self.disk_reads * PAGE


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The milliseconds of the tables' part of a step. `disk` is None if the speed of the disk is not known."""

    lookup: float
    merge: float
    update: float
    exchange: float
    latency: float
    disk: float | None

    @property
    def total(self) -> float:
        """The milliseconds of all parts."""
        return self.lookup + self.merge + self.update + self.exchange + self.latency + (self.disk or 0.0)


def updated_keys(table: PlannedTable, skew: Skew, config: PlanConfig) -> float:
    """Returns the distinct keys of a step that a machine updates."""
    draws = table.ids_per_sample * config.batch_size * config.ranks
    keys = min(skew.distinct(draws), float(table.rows))
    return keys / config.machines if isinstance(table.config.placement, Sharded) else keys


def of_table(table: PlannedTable, size: TableBytes, skew: Skew, config: PlanConfig, costs: Costs) -> TableStep:
    """Returns a table's part of a step.

    Args:
      table: The table, with its storage and placement.
      size: The bytes of the table.
      skew: The frequencies of its ids.
      config: The job.
      costs: The costs of work on the machine.
    """
    ranks, machines = config.ranks_per_machine, config.machines
    n = table.ids_per_sample * config.batch_size
    own, node = (min(skew.distinct(n * k), float(table.rows)) for k in (1, ranks))
    own = min(own, n)
    sharded = isinstance(table.config.placement, Sharded) and machines > 1
    updated = updated_keys(table, skew, config)
    width = 4 * table.config.dim
    state = memory.row_bytes(table.config) + memory.slot_bytes(table.config)
    looked = costs.lookup_key_ns + costs.lookup_byte_ns * width
    again = costs.repeat_key_ns + costs.repeat_byte_ns * width
    merge = costs.merge_key_ns + costs.merge_byte_ns * width
    # Each plane of a row is at a place of its own, besides its index entry and change generation. Costs are those of
    # two planes.
    planes = 2 if table.config.optimizer is None else 1 + len(table.config.optimizer.slots)
    update = costs.update_key_ns * (2 + planes) / 4 + costs.update_byte_ns * state
    if n * width > LARGE:
        looked += costs.large_lookup_byte_ns * width
        again += costs.large_lookup_byte_ns * width
        merge += costs.large_merge_byte_ns * width
    lookup_ns = ranks * (own * looked + (n - own) * again)
    merge_ns = ranks * (n - own) * merge
    if ranks > 1:
        merge_ns += ranks * own * merge
    if machines > 1:  # gradients of other machines
        merge_ns += (node if sharded else machines * node) * merge
    if sharded:
        lookup_ns += ranks * own * again  # rows of other machines are copied once more
    return TableStep(
        ids=n * ranks,
        distinct=node,
        updated=updated,
        sent_bytes=_sent(table, node, machines),
        disk_reads=_reads(table, size, skew, config),
        lookup_ms=1e-6 * (lookup_ns + ranks * costs.call_ns / 2),
        merge_ms=1e-6 * merge_ns,
        update_ms=1e-6 * (updated * update + costs.call_ns / 2),
    )


def _sent(table: PlannedTable, node: float, machines: int) -> float:
    """Returns the bytes that a machine sends for the `node` distinct keys of its ranks."""
    if machines == 1:
        return 0.0
    density = max(node / table.rows, 1e-12)
    key = max(1.0, math.log2(_LONGEST_GAP / min(density, 1.0))) / 8
    gradient = 4 * table.config.dim
    placement = table.config.placement
    if not isinstance(placement, Sharded):
        return (machines - 1) * node * (key + gradient)
    row = _BITS[placement.wire] * table.config.dim
    return (machines - 1) / machines * node * (2 * key + gradient + row)


def _reads(table: PlannedTable, size: TableBytes, skew: Skew, config: PlanConfig) -> float:
    """Returns the rows that a step reads from disk. The rows that were used last are in memory."""
    if not isinstance(table.config.storage, Tiered) or size.rows_on_disk == 0:
        return 0.0
    nodes = config.machines if isinstance(table.config.placement, Sharded) else 1
    draws = table.ids_per_sample * config.batch_size * config.ranks
    missing = 0.0
    for _ in range(3):  # the rows that come take the space of others
        inside = max(0.0, size.rows_in_memory - _SPARE * missing) * nodes
        missing = skew.missing(draws, inside) / nodes
    return missing


def total(tables: Sequence[PlannedTable], steps: Mapping[str, TableStep], config: PlanConfig) -> StepTime:
    """Returns the time of a step of all tables."""
    parts = [steps[table.name] for table in tables]
    machines, ranks = config.machines, config.ranks
    wire_s = sum(part.sent_bytes for part in parts) * 8 / (config.network_mbit * 1e6)
    sharded = any(isinstance(table.config.placement, Sharded) for table in tables)
    connections = (machines - 1) * config.ranks_per_machine if sharded or machines == 2 else 0
    if connections:
        wire_s /= 1 - 2.0**-connections
    messages = 0
    if machines > 1:
        messages = (
            ranks - 1 + sum(3 if isinstance(table.config.placement, Sharded) else machines - 1 for table in tables)
        )
    reads, disk = sum(part.disk_reads for part in parts), config.disk
    rate = None if disk is None else disk.reads_per_second
    return StepTime(
        lookup=sum(part.lookup_ms for part in parts),
        merge=sum(part.merge_ms for part in parts),
        update=sum(part.update_ms for part in parts),
        exchange=1e3 * wire_s,
        latency=1e-3 * messages * config.latency_us,
        disk=0.0 if not reads else None if rate is None else 1e3 * reads / rate,
    )
