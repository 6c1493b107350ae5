"""`Options`: the values of one draw. `draw.py` chooses them, and `rules.py` has the combinations that are not drawn."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

# The hosts of each layout, as horovodrun takes them, and the ranks of each node.
LAYOUTS: dict[str, tuple[str, list[list[int]]]] = {
    "1": ("localhost:1", [[0]]),
    "2": ("localhost:2", [[0, 1]]),
    "3": ("localhost:3", [[0, 1, 2]]),
    "1+1": ("localhost:1,127.0.0.1:1", [[0], [1]]),
    "2+2": ("localhost:2,127.0.0.1:2", [[0, 1], [2, 3]]),
}


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """One table and the layer that looks it up.

    Attributes:
      layer: "embedding", "sum" or "mean" (`EmbeddingReduce` with this combiner), or "collection".
      features: The number of features of the collection that share the table; 1 for other layers.
      dim: The width of a row.
      keys: The size of the pool from which ids are drawn.
      bounded: Whether ids are 0 .. keys - 1. Otherwise they are any int64.
      weights: Whether the table begins with a matrix (`weights=`).
      dtype, rounding, constraint: The options of `TableConfig`; a constraint is "" or "non_neg".
      placement: "replicated" or "sharded".
      pull: The type in which rows of a sharded table travel.
      storage: "memory" or "tiered".
      cache: "" or the policy of a `DeviceCache`.
      eviction: "" or the policy of a `tsps.Eviction`.
      unused_steps, max_rows, use_half_life: Options of the eviction; 0: None.
      kept: The number of keys that the eviction keeps, the first ones of the pool.
      count: The count of a `tsps.Admission`; 0: the table has none.
      expected_keys, count_half_life: Options of the admission.
    """

    layer: str
    features: int
    dim: int
    keys: int
    bounded: bool
    weights: bool
    dtype: str
    rounding: str
    constraint: str
    placement: str
    pull: str
    storage: str
    cache: str
    eviction: str = ""
    unused_steps: int = 0
    max_rows: int = 0
    use_half_life: int = 10_000
    kept: int = 0
    count: int = 0
    expected_keys: int = 0
    count_half_life: int = 10_000

    @property
    def has_policies(self) -> bool:
        """Whether the table evicts rows or admits keys."""
        return bool(self.eviction or self.count)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a job.

    Attributes:
      seed: The seed of the draw, and of all data.
      engine: "horovod", "tensorflow" or "local".
      layout: A key of `LAYOUTS`.
      rule: A key of `row_rule_table.RULES`.
      matched: Whether the Keras optimizer determines the tables' rule. Otherwise the rule is passed, with Keras's SGD.
      reduction, topology, wire: The options of `DistributedOptimizer`.
      clip: `clipvalue`; 0: none.
      schedule: "synchronous", "buckets", "server" or "delayed".
      staleness, cycle: The options of `DelayedGlobal`.
      batch, width: The samples of a batch (a power of two, so that means are exact); the ids per sample and feature.
      policy: The state that a restart resumes. "checkpointer": a `Checkpointer`. "callback": `callbacks.Checkpoint`
        in one `fit`. "live": the tables of a named job. "none": nothing is killed.
      named: Whether the job has a name, so that its tables outlive it.
      background, incremental, per_node, keep, every: Options of the checkpoints; `every` counts steps of "callback".
      tables: The options of one or more tables.
    """

    seed: int
    engine: str
    layout: str
    rule: str
    matched: bool
    reduction: str
    topology: str
    wire: str
    clip: float
    schedule: str
    staleness: int
    cycle: int
    batch: int
    width: int
    policy: str
    named: bool
    background: bool
    incremental: bool
    per_node: bool
    keep: int
    every: int
    tables: tuple[TableOptions, ...]

    @property
    def hosts(self) -> str:
        """The hosts, as for horovodrun's -H."""
        return LAYOUTS[self.layout][0]

    @property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node."""
        return LAYOUTS[self.layout][1]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.nodes))

    def node_of(self, rank: int) -> int:
        """Returns the node of a rank."""
        return next(node for node, ranks in enumerate(self.nodes) if rank in ranks)

    def sharded(self, table: int) -> bool:
        """Whether a table is sharded over several nodes."""
        return self.tables[table].placement == "sharded" and len(self.nodes) > 1

    def shards(self, table: int) -> int:
        """Returns the number of nodes that share the rows of a table; 1: every node has all rows."""
        return len(self.nodes) if self.sharded(table) else 1

    def any_table(self, **values: Any) -> bool:
        """Whether a table has one of these values."""
        return any(getattr(table, name) == value for table in self.tables for name, value in values.items())


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of the script, made by all ranks.

    Attributes:
      kind: A kind of `operations.KINDS`.
      steps: The number of training steps.
      first: The number of its first batch.
      how: "loop", "eager" or "fit".
      ahead: The number of batches of `tsps.lookahead`; 0: without.
      leftover: The number of batches after the last one that the dataset announces and no rank trains.
      weights: The `rank_weight` of each rank; empty: 1.
      table: The table that is written.
      value: A learning rate, or a seed of values.
      epochs: The number of batches of each epoch, for the policy "callback".
    """

    kind: str
    steps: int = 0
    first: int = 0
    how: str = "loop"
    ahead: int = 0
    leftover: int = 0
    weights: tuple[float, ...] = ()
    table: int = 0
    value: float = 0.0
    epochs: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Kill:
    """A kill that ends one run of the job early.

    Attributes:
      who: "rank", "leader", "everything" (launcher and ranks) or "launcher" (of `tf-sparse-ps run`).
      rank: The number of the "rank", or of the node of the "leader".
      op, sub: The kill comes when a rank has reached this operation and step; op -1: while ranks start.
      delay_s: The time after that.
      point: The rank kills itself at this point of a save or a restore (`checkpoints.fault_points`), after it has
        reached `op`. "": a signal from outside.
      signal: The number of the signal.
    """

    who: str
    rank: int
    op: int
    sub: int
    delay_s: float
    point: str = ""
    signal: int = 9


@dataclasses.dataclass(frozen=True)
class Plan:
    """One draw.

    Attributes:
      options: The options of the job.
      operations: The script.
      kills: One kill for each run except the last.
      edits: Seeds of what is written to the tables of a "live" job between two runs; 0: nothing.
      fault: The fault of the control; "": none.
    """

    options: Options
    operations: tuple[Operation, ...]
    kills: tuple[Kill, ...]
    edits: tuple[int, ...]
    fault: str = ""

    def to_json(self) -> str:
        """Returns the plan as JSON, for a rank's program."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Reads a plan from a file of `to_json`."""
        raw = json.loads(Path(path).read_text())
        tables = tuple(TableOptions(**table) for table in raw["options"].pop("tables"))
        lists = ("weights", "epochs")
        operations = tuple(
            Operation(**{name: tuple(value) if name in lists else value for name, value in fields_of_operation.items()})
            for fields_of_operation in raw["operations"]
        )
        options = Options(**raw["options"], tables=tables)
        kills = tuple(Kill(**fields_of_kill) for fields_of_kill in raw["kills"])
        return cls(options, operations, kills, tuple(raw["edits"]), raw["fault"])
