"""`Options`: what one draw is made of. Values only; `draw.py` chooses them, `rules.py` says which go together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

# Hosts as horovodrun takes them, and the ranks of each node.
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
      features: How many features of the collection share the table; 1 for other layers.
      dim: Width of a row.
      keys: Size of the pool that ids are drawn from.
      bounded: Ids are 0 .. keys - 1. Otherwise any int64.
      weights: The table begins with a matrix (`weights=`).
      dtype, rounding, constraint: As in `TableConfig`; a constraint is "" or "non_neg".
      placement: "replicated" or "sharded".
      pull: The type in which rows of a sharded table travel.
      storage: "memory" or "tiered".
      cache: "" or the policy of a `DeviceCache`.
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


@dataclasses.dataclass(frozen=True)
class Options:
    """A job.

    Attributes:
      seed: Of the draw, and of all data.
      engine: "horovod", "tensorflow" or "local".
      layout: Key of `LAYOUTS`.
      rule: Key of `row_rule_table.RULES`.
      matched: The tables' rule follows from the Keras optimizer. Otherwise it is given, beside Keras's SGD.
      reduction, topology, wire: As in `DistributedOptimizer`.
      clip: `clipvalue`; 0: none.
      schedule: "synchronous", "buckets", "server" or "delayed".
      staleness, cycle: Of `DelayedGlobal`.
      batch, width: Samples of a batch (a power of two, so that means are exact); ids per sample and feature.
      policy: What a restart resumes from. "checkpointer": a `Checkpointer`. "callback": `callbacks.Checkpoint` in one
        `fit`. "live": the tables of a named job. "none": nothing is killed.
      named: The job has a name, so that its tables outlive it.
      background, incremental, per_node, keep, every: Of the checkpoints; `every` counts steps of "callback".
      tables: One or more.
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
        """As horovodrun's -H."""
        return LAYOUTS[self.layout][0]

    @property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node."""
        return LAYOUTS[self.layout][1]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return sum(map(len, self.nodes))

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return next(node for node, ranks in enumerate(self.nodes) if rank in ranks)

    def sharded(self, table: int) -> bool:
        """Whether a table is spread over several nodes."""
        return self.tables[table].placement == "sharded" and len(self.nodes) > 1

    def any_table(self, **values: Any) -> bool:
        """Whether a table has one of these values."""
        return any(getattr(table, name) == value for table in self.tables for name, value in values.items())


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of the script, made by all ranks.

    Attributes:
      kind: See `operations.KINDS`.
      steps: Of training.
      first: Number of its first batch.
      how: "loop", "eager" or "fit".
      ahead: Batches of `tsps.lookahead`; 0: without.
      leftover: Batches behind the last one that the dataset announces and nobody trains.
      weights: `rank_weight` of each rank; empty: 1.
      table: That is written.
      value: A learning rate, or a seed of values.
      epochs: Batches of each epoch of the policy "callback".
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
    """How one run of the job ends early.

    Attributes:
      who: "rank", "leader", "everything" (launcher and ranks) or "launcher" (of `tf-sparse-ps run`).
      rank: Which one, of "rank"; the node, of "leader".
      op, sub: The kill comes when a rank has got this far; op -1: while ranks start.
      delay_s: Time after that.
      point: The rank kills itself at this point of a save or a restore (`checkpoints.fault_points`), once it has got
        to `op`. "": a signal from outside.
      signal: Its number.
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
      options: Of the job.
      operations: The script.
      kills: One for each run but the last.
      edits: Seeds of what is written to the tables of a "live" job between two runs; 0: nothing.
      fault: Of the control; "": none.
    """

    options: Options
    operations: tuple[Operation, ...]
    kills: tuple[Kill, ...]
    edits: tuple[int, ...]
    fault: str = ""

    def to_json(self) -> str:
        """For a rank's program."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """The inverse of `to_json`, from a file."""
        raw = json.loads(Path(path).read_text())
        tables = tuple(TableOptions(**table) for table in raw["options"].pop("tables"))
        lists = ("weights", "epochs")
        operations = tuple(
            Operation(**{name: tuple(value) if name in lists else value for name, value in one.items()})
            for one in raw["operations"]
        )
        options = Options(**raw["options"], tables=tables)
        kills = tuple(Kill(**one) for one in raw["kills"])
        return cls(options, operations, kills, tuple(raw["edits"]), raw["fault"])
