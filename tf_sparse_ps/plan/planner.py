"""`plan`: chooses storage, placement and type of each table, and adds up what a machine needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import DeviceCache, Sharded, Tiered
from tf_sparse_ps.plan import memory, step_time
from tf_sparse_ps.plan.configuration import Disk, PlanConfig, PlannedTable
from tf_sparse_ps.plan.costs import Costs
from tf_sparse_ps.plan.memory import TableBytes
from tf_sparse_ps.plan.skew import Skew
from tf_sparse_ps.plan.step_time import StepTime, TableStep

_EXCHANGE = 64 << 20  # bytes per rank in which ranks merge gradients (docs/training-reference.md)
_LEAST_TIER = 16 << 20
_SMALL = 1 << 20  # a table of fewer bytes is not worth an exchange of its own
_LEAST_GAIN_MS = 0.5  # of a step: all ranks must look up a sharded table together, which replicas need not
_LEAST_HITS = 0.5  # of a cache, or most rows travel to the device as without one


@dataclasses.dataclass(frozen=True)
class Choice:
    """A table with its storage, placement and type, and what they cost.

    Attributes:
      table: The table.
      size: Its bytes on one machine.
      step: Its part of a step.
      reason: One sentence for each field that the plan has chosen, by its name.
      hit_rate: The share of ids whose rows are in memory, or on the device; None: there are no tiers and no cache.
    """

    table: PlannedTable
    size: TableBytes
    step: TableStep
    reasons: Mapping[str, str]
    hit_rate: float | None


@dataclasses.dataclass(frozen=True)
class Sums:
    """The bytes of a machine: tables and undo log, exchange between ranks, buffers of a step, and processes."""

    tables: int
    exchange: int
    buffers: int
    processes: int

    @property
    def shared(self) -> int:
        """The bytes in shared memory."""
        return self.tables + self.exchange

    @property
    def memory(self) -> int:
        """All bytes of memory."""
        return self.shared + self.buffers + self.processes


_IN_MEMORY = "All rows fit into memory."
_NO_DISK = "No disk is given, so all rows must be in memory."
_NOT_ON_DISK = "Its rows stay in memory, which has no room for all tables."


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a job.

    Attributes:
      choices: The tables.
      sums: The bytes of a machine.
      disk: The bytes on the disk of a machine.
      step: The time of the tables' part of a step.
      problems: What does not fit, with the missing bytes: empty if everything fits.
      remedies: What would make it fit.
    """

    choices: tuple[Choice, ...]
    sums: Sums
    disk: int
    step: StepTime
    problems: tuple[tuple[str, int], ...]
    remedies: tuple[str, ...]


class Planner:
    """Chooses the storage, the placement and the type of tables, where the user has left them out."""

    def __init__(self, config: PlanConfig, skews: Mapping[str, Skew], costs: Costs) -> None:
        """`skews`: by the names of the tables."""
        self._config, self._skews, self._costs = config, skews, costs
        self._reasons: dict[str, dict[str, str]] = {table.name: {} for table in config.tables}

    def plan(self) -> Plan:
        """Returns the plan."""
        tables = [self._first(table) for table in self._config.tables]
        tables = self._cached(self._shrunk(tables))
        plan = self._evaluated(tables)
        if plan.problems:
            if {"memory", "shared memory"} & {what for what, _ in plan.problems}:
                for table in tables:
                    if "storage" not in table.chosen and table.config.storage == "memory":
                        self._reasons[table.name]["storage"] = _NO_DISK if self._config.disk is None else _NOT_ON_DISK
            return dataclasses.replace(plan, remedies=tuple(self._remedies(tables, plan)))
        return plan

    # --- choices ---

    def _first(self, table: PlannedTable) -> PlannedTable:
        """Returns a table in memory; on several machines with the placement whose step is faster."""
        reasons, machines = self._reasons[table.name], self._config.machines
        for name in table.chosen:
            reasons[name] = "It is as given."
        reasons.setdefault("storage", _IN_MEMORY)
        reasons.setdefault("dtype", "Rows of float32 fit, so they need not be rounded.")
        if "placement" in table.chosen or table.config.cache is not None:
            reasons.setdefault("placement", "A table with a device cache cannot be sharded.")
            return table
        if machines == 1:
            reasons["placement"] = "There is one machine, so nothing can be shared."
            return table
        sharded = table.changed(placement=Sharded())
        whole, part = (self._evaluated([each]) for each in (table, sharded))
        gain = whole.step.total - part.step.total
        if whole.sums.tables > _SMALL and gain > _LEAST_GAIN_MS:
            reasons["placement"] = (
                f"On {machines} machines a step of a shard takes {gain:.2g} ms less than one of replicas, because a "
                "machine gets only the gradients of its own rows."
            )
            return sharded
        reasons["placement"] = "Replicas answer lookups without an exchange, and steps of shards are not faster."
        return table

    def _shrunk(self, tables: list[PlannedTable]) -> list[PlannedTable]:
        """Shards tables, halves their rows, and moves rows to disk, the largest table first, until all fit."""
        for change in (self._shard, self._halve):
            for table in sorted(tables, key=lambda each: -self._size(each).memory):
                if not self._evaluated(tables).problems:
                    return tables
                changed = change(table)
                tables = [changed if each.name == table.name else each for each in tables]
        return self._restored(self._on_disk(tables))

    def _restored(self, tables: list[PlannedTable]) -> list[PlannedTable]:
        """Gives tables float32 rows again, the smallest first, as far as they fit after all."""
        given = {table.name: table.config.dtype for table in self._config.tables}
        for table in sorted(tables, key=lambda each: self._size(each).memory):
            if table.config.dtype == given[table.name]:
                continue
            whole = table.changed(dtype=given[table.name])
            attempt = [whole if each.name == table.name else each for each in tables]
            if whole.config.storage == "memory" and not self._evaluated(attempt).problems:
                tables = attempt
                self._reasons[table.name]["dtype"] = "Rows of float32 fit, so they need not be rounded."
        return tables

    def _shard(self, table: PlannedTable) -> PlannedTable:
        fixed = "placement" in table.chosen or table.config.cache is not None or self._config.machines == 1
        if fixed or isinstance(table.config.placement, Sharded) or self._size(table).memory < _SMALL:
            return table
        self._reasons[table.name]["placement"] = (
            f"A whole copy on each machine does not fit, and a shard takes 1/{self._config.machines} of it."
        )
        return table.changed(placement=Sharded())

    def _halve(self, table: PlannedTable) -> PlannedTable:
        if "dtype" in table.chosen or table.config.dtype != "float32" or self._size(table).memory < _SMALL:
            return table
        saved = table.changed(dtype="bfloat16")
        share = 1 - self._size(saved).memory / self._size(table).memory
        self._reasons[table.name]["dtype"] = (
            f"Rows of float32 do not fit, and 16-bit rows make the table {share:.0%} smaller."
        )
        return saved

    def _on_disk(self, tables: list[PlannedTable]) -> list[PlannedTable]:
        """Moves rows of the largest tables to disk, until the others and the tiers' memory fit."""
        disk = self._config.disk
        free = [
            table
            for table in sorted(tables, key=lambda each: -self._size(each).memory)
            if "storage" not in table.chosen and table.config.cache is None and self._size(table).memory > _LEAST_TIER
        ]
        if disk is None:
            return tables
        tiered: list[PlannedTable] = []
        for table in free:
            missing = max((bytes for what, bytes in self._evaluated(tables).problems if what != "disk"), default=0)
            if not missing:
                break
            tiered.append(table)
            # The tiers share what is left beside the other tables, in proportion to their sizes.
            others = [each for each in tables if each.name not in {tier.name for tier in tiered}]
            # The step's undo log and buffers stay.
            needed = {each.name: self._size(each) for each in tiered}
            kept = self._room([*others, *tiered]) + sum(size.table for size in needed.values())
            all_bytes = sum(size.table for size in needed.values())
            changed = {}
            for each in tiered:
                memory_bytes = int(kept * needed[each.name].table / all_bytes)
                if memory_bytes < self._least_tier(each):
                    continue
                rows = self._size(each).rows_in_memory
                storage = Tiered(disk.path, memory_bytes)
                moved = each.changed(storage=storage)
                share = self._size(moved).rows_in_memory / rows
                self._reasons[each.name]["storage"] = (
                    f"The table does not fit into memory beside the others, so {share:.0%} of its rows are in memory "
                    "and the others on disk."
                )
                changed[each.name] = moved
            attempt = [changed.get(each.name, each) for each in tables]
            if len(changed) == len(tiered) and not [p for p in self._evaluated(attempt).problems if p[0] != "disk"]:
                return attempt
        return tables

    def _cached(self, tables: list[PlannedTable]) -> list[PlannedTable]:
        """Gives tables caches on the device, of equal shares of its memory, if most ids find their row there."""
        config = self._config
        able = [
            table
            for table in tables
            if "cache" not in table.chosen
            and table.config.storage == "memory"
            and table.config.placement == "replicated"
            and table.config.eviction is None
            and table.config.admission is None
        ]
        if config.device_memory is None or config.ranks > 1 or not able:
            return tables
        left = config.device_memory - sum(_device_bytes(table) for table in tables)
        changed = {}
        for table in able:
            bytes_per_row = memory.row_bytes(table.config) + memory.slot_bytes(table.config)
            rows = min(table.rows, max(0, left) // len(able) // bytes_per_row)
            hits = self._skews[table.name].hit_rate(rows, "lfu") if rows else 0.0
            if hits < _LEAST_HITS:
                self._reasons[table.name]["cache"] = f"Only {hits:.0%} of ids would find their row on the device."
                continue
            self._reasons[table.name]["cache"] = f"{hits:.0%} of ids find their row among the {rows:,} on the device."
            changed[table.name] = table.changed(cache=DeviceCache(rows))
        return [changed.get(table.name, table) for table in tables]

    def _least_tier(self, table: PlannedTable) -> int:
        """Returns the least memory of a tiered table: the places of all rows, and the rows of two steps."""
        keys = step_time.updated_keys(table, self._skews[table.name], self._config)
        nodes = self._nodes(table)
        rows = -(-table.rows // nodes)
        return max(_LEAST_TIER, memory.memory_for(table.config, rows, min(rows, int(2 * keys) + 1), nodes))

    def _tier(self, table: PlannedTable) -> tuple[Tiered | None, int]:
        """Returns the tiered storage of a table, if it has one, and the least memory that it needs."""
        storage = table.config.storage
        return (storage, self._least_tier(table)) if isinstance(storage, Tiered) else (None, 0)

    # --- sums ---

    def _nodes(self, table: PlannedTable) -> int:
        return self._config.machines if isinstance(table.config.placement, Sharded) else 1

    def _size(self, table: PlannedTable) -> TableBytes:
        keys = step_time.updated_keys(table, self._skews[table.name], self._config)
        return memory.estimate(table.config, table.rows, keys, self._config.machines)

    def _sums(self, tables: Sequence[PlannedTable]) -> Sums:
        config = self._config
        buffers = tables_bytes = 0
        for table in tables:
            size = self._size(table)
            n = table.ids_per_sample * config.batch_size
            distinct = self._skews[table.name].distinct(n)
            width = 4 * table.config.dim
            # A rank keeps the rows that it has looked up, their gradients, and the sum for each key.
            buffers += int(config.ranks_per_machine * (2 * n * (width + 8) + distinct * (width + 8)))
            buffers += size.buffers
            tables_bytes += size.shared
        exchange = _EXCHANGE * config.ranks_per_machine if config.ranks > 1 else 0
        return Sums(tables_bytes, exchange, buffers, config.memory_per_rank * config.ranks_per_machine)

    def _room(self, tables: Sequence[PlannedTable]) -> int:
        """Returns the bytes that are left; below 0: that are missing."""
        sums = self._sums(tables)
        return min(self._config.memory - sums.memory, self._config.shared_memory - sums.shared)

    def _evaluated(self, tables: Sequence[PlannedTable]) -> Plan:
        config = self._config
        choices = []
        for table in tables:
            size, skew = self._size(table), self._skews[table.name]
            step = step_time.of_table(table, size, skew, config, self._costs)
            choices.append(Choice(table, size, step, self._reasons[table.name], _hit_rate(table, size, skew)))
        sums = self._sums(tables)
        disk = sum(choice.size.disk for choice in choices)
        problems = []
        tiers = sum(max(0, needed - int(storage.memory)) for storage, needed in map(self._tier, tables) if storage)
        if tiers:
            problems.append(("tier memory", tiers))
        if sums.memory > config.memory:
            problems.append(("memory", sums.memory - config.memory))
        if sums.shared > config.shared_memory:
            problems.append(("shared memory", sums.shared - config.shared_memory))
        if disk and config.disk is not None and disk > config.disk.bytes:
            problems.append(("disk", disk - config.disk.bytes))
        cached = sum(_device_bytes(table) for table in tables)
        if config.device_memory is not None and cached > config.device_memory:
            problems.append(("device memory", cached - config.device_memory))
        whole_step = step_time.total(tables, {choice.table.name: choice.step for choice in choices}, config)
        return Plan(tuple(choices), sums, disk, whole_step, tuple(problems), ())

    # --- remedies ---

    def _remedies(self, tables: Sequence[PlannedTable], plan: Plan) -> list[str]:
        """Returns what would make a plan fit, each alone."""
        config, sums = self._config, plan.sums
        missing = dict(plan.problems)
        remedies = []
        if "memory" in missing:
            remedies.append(f"Use machines with {_gib(sums.memory)} of memory.")
        if "shared memory" in missing:
            remedies.append(f"Enlarge /dev/shm to {_gib(sums.shared)}, or set TFSPS_DIR to a larger tmpfs.")
        for table in tables:
            storage, needed = self._tier(table)
            if storage is not None and needed > int(storage.memory):
                remedies.append(f"Give the tiered table {table.name!r} {_gib(needed)} of memory.")
        if "disk" in missing:
            remedies.append(f"Use a disk with {_gib(plan.disk)} of free space.")
        if "device memory" in missing:
            remedies.append("Give the device caches fewer rows.")
        if not missing.keys() & {"memory", "shared memory"}:
            return remedies
        machines = self._machines_needed(tables)
        if machines is not None:
            remedies.append(f"Shard the tables over {machines} machines: placement=tsps.Sharded().")
        slim = [self._slim(table) for table in tables]
        if any(new != old for new, old in zip(slim, tables, strict=True)) and self._room(slim) >= 0:
            remedies.append('Use 16-bit rows and tsps.optimizers.RowwiseAdagrad: dtype="bfloat16", rowwise_adagrad.')
        if config.disk is None and (bytes := self._disk_needed(tables)):
            remedies.append(f"Give the machines a disk with {_gib(bytes)} of free space for tsps.Tiered.")
        return remedies

    def _slim(self, table: PlannedTable) -> PlannedTable:
        rule = optimizers.RowwiseAdagrad()
        return table.changed(
            dtype="bfloat16" if table.config.dtype == "float32" else table.config.dtype, optimizer=rule
        )

    def _machines_needed(self, tables: Sequence[PlannedTable]) -> int | None:
        """Returns the smallest number of machines on which all tables fit as shards; None: they never do."""
        sharded = [table if table.config.cache is not None else table.changed(placement=Sharded()) for table in tables]
        machines = self._config.machines + 1
        while machines <= 4096:
            config = dataclasses.replace(self._config, machines=machines)
            if Planner(config, self._skews, self._costs)._room(sharded) >= 0:
                return machines
            machines += max(1, machines // 8)
        return None

    def _disk_needed(self, tables: Sequence[PlannedTable]) -> int:
        """Returns the bytes of disk with which the tables would fit; 0: they would not."""
        config = dataclasses.replace(self._config, disk=Disk("/disk", 1 << 60))
        plan = Planner(config, self._skews, self._costs)
        moved = plan._on_disk(list(tables))
        return 0 if plan._evaluated(moved).problems else plan._evaluated(moved).disk


def _hit_rate(table: PlannedTable, size: TableBytes, skew: Skew) -> float | None:
    cache = table.config.cache
    if isinstance(cache, DeviceCache):
        return skew.hit_rate(cache.rows, "lru" if cache.policy == "lru" else "lfu")
    if isinstance(table.config.storage, Tiered) and size.rows_on_disk:
        share = size.rows_in_memory / (size.rows_in_memory + size.rows_on_disk)
        return skew.hit_rate(int(share * table.rows), "lru")
    return None


def _device_bytes(table: PlannedTable) -> int:
    cache = table.config.cache
    if cache is None:
        return 0
    return int(cache.rows) * (memory.row_bytes(table.config) + memory.slot_bytes(table.config))


def _gib(n: int) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{-(-n // 2**20)} MiB"
