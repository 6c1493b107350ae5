"""Draws a plan from a seed: options that may be combined, a script, and kills."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from tests.oracle import data, rules
from tests.oracle.operations import script
from tests.oracle.options import Kill, Operation, Options, Plan, TableOptions
from tests.oracle.row_rule_table import RULES
from tests.oracle.timeline import steps_of

# The points of saves and restores at which rank 0 or a leader kills itself (tf_sparse_ps/checkpoints/fault_points.py).
SAVE_POINTS = (
    "claimed leftovers_removed folder_made file_written manifest_written folder_synced renamed directory_synced "
    "captured"
).split()
PART_POINTS = ["part_written", "part_reported"]
RESTORE_POINTS = "compared rows_restored table_restored step_set variables_restored".split()

MOST_BATCHES = 40  # more than a script has
NO_POLICIES: dict[str, Any] = {"eviction": "", "unused_steps": 0, "max_rows": 0, "kept": 0, "count": 0}


def _table(choose: random.Random) -> TableOptions:
    layer = choose.choice(["embedding", "embedding", "sum", "mean", "collection"])
    bounded = choose.random() < 0.5
    dtype = choose.choice(["float32", "float32", "float32", "bfloat16", "float16"])
    placement = choose.choice(["replicated", "replicated", "sharded"])
    return TableOptions(
        layer=layer,
        features=choose.choice([1, 2]) if layer == "collection" else 1,
        dim=choose.choice([1, 3, 4, 8, 19]),
        keys=choose.choice([20, 90, 300]),
        bounded=bounded,
        weights=bounded and layer != "collection" and choose.random() < 0.4,
        dtype=dtype,
        rounding="stochastic" if dtype == "float32" else choose.choice(["stochastic", "nearest"]),
        constraint=choose.choice(["", "", "", "non_neg"]),
        placement=placement,
        pull=choose.choice(["float32", "float32", "bfloat16"]) if placement == "sharded" else "float32",
        storage=choose.choice(["memory", "memory", "tiered"]),
        cache=choose.choice(["", "", "", "lru", "admission"]),
        **_policies(choose),
    )


def _policies(choose: random.Random) -> dict[str, Any]:
    """Returns the options of eviction and admission. `_bounded` replaces max_rows=1 by a bound that steps can meet."""
    fields: dict[str, Any] = {}
    if choose.random() < 0.45:
        limits = choose.choice(["unused_steps", "max_rows", "both"])
        fields |= {
            "eviction": choose.choice(["lru", "lfu"]),
            "unused_steps": 0 if limits == "max_rows" else choose.choice([1, 2, 3, 6]),
            "max_rows": int(limits != "unused_steps"),
            "use_half_life": choose.choice([1, 3, 10_000]),
            "kept": choose.choice([0, 0, 2]),
        }
    if choose.random() < 0.35:
        fields |= {
            "count": choose.choice([2, 2, 3, 5, 20]),
            "expected_keys": choose.choice([1, 30, 300, 3000]),
            "count_half_life": choose.choice([2, 5, 10_000]),
        }
    return fields


def _bounded(choose: random.Random, options: Options) -> Options:
    """Gives evictions bounds that every step of the job fits into, and most tables more keys than that."""
    tables = []
    for t, table in enumerate(options.tables):
        if table.has_policies and table.storage == "memory" and choose.random() < (0.7 if table.max_rows else 0.3):
            table = dataclasses.replace(table, keys=3000)
        if table.max_rows:
            sized = dataclasses.replace(options, tables=(*tables, table, *options.tables[t + 1 :]))
            rows = data.most_keys(sized, t, MOST_BATCHES) + table.kept + choose.choice([0, 1, 7, 30])
            table = dataclasses.replace(table, max_rows=rows * options.shards(t) + choose.randrange(options.shards(t)))
        tables.append(table)
    return dataclasses.replace(options, tables=tuple(tables))


@dataclasses.dataclass(frozen=True)
class _Frame:
    """Options that are chosen first, so that rules against combinations do not change how often they occur."""

    layout: str
    schedule: str
    policy: str


def _frame(choose: random.Random) -> _Frame:
    layout = choose.choice(["1", "1", "2", "2", "2", "3", "1+1", "1+1", "1+1", "2+2"])
    schedules = ["synchronous"] * 4 + ["buckets", "server"] + (["delayed"] * 2 if layout in ("2", "1+1") else [])
    policies = ["checkpointer", "checkpointer", "checkpointer", "callback", "callback", "live", "none"]
    schedule = "synchronous" if layout == "1" else choose.choice(schedules)
    policy = choose.choice([name for name in policies if name != "live" or schedule != "delayed"])
    return _Frame(layout, schedule, policy)


def _options(choose: random.Random, seed: int, frame: _Frame) -> Options:
    tables = tuple(_table(choose) for _ in range(choose.choice([1, 2, 2, 3])))
    if frame.layout != "1":
        tables = tuple(dataclasses.replace(table, cache="") for table in tables)
    # Combinations that are refused would otherwise make caches and delayed schedules rare.
    tables = tuple(
        dataclasses.replace(table, **NO_POLICIES) if table.cache or frame.schedule == "delayed" else table
        for table in tables
    )
    return Options(
        seed=seed,
        engine=choose.choice(["horovod", "local"] if frame.layout == "1" else ["horovod", "tensorflow"]),
        layout=frame.layout,
        rule=choose.choice(list(RULES)) if frame.policy != "live" else "sgd",
        matched=choose.random() < 0.6,
        reduction=choose.choice(["frequency", "average", "sum"]),
        topology=choose.choice(["hierarchical", "hierarchical", "hierarchical", "flat"]),
        wire=choose.choice(["float32", "float32", "bfloat16", "float16"]),
        clip=choose.choice([0.0, 0.0, 0.0, 0.25]),
        schedule=frame.schedule,
        staleness=choose.choice([1, 2, 4]),
        cycle=choose.choice([3, 100]),
        batch=choose.choice([4, 8, 16]),
        width=choose.choice([1, 2, 3]),
        policy=frame.policy,
        named=frame.policy == "live" or choose.random() < 0.6,
        background=choose.random() < 0.5,
        incremental=choose.random() < 0.7,
        per_node=choose.random() < 0.2,
        keep=choose.choice([1, 2, 3]),
        every=choose.choice([1, 2, 3, 5]),
        tables=tables,
    )


def _kill(choose: random.Random, options: Options, operations: tuple[Operation, ...], run: int) -> Kill:
    who = choose.choice(["rank", "rank", "rank", "leader", "leader", "everything", "launcher"])
    op = choose.randrange(-1, len(operations))
    sub = choose.randrange(max(1, steps_of(operations[op]))) if op >= 0 else 0
    delay = choose.choice([0.0, 10 ** choose.uniform(-4, -1), 10 ** choose.uniform(-2, 0)])
    if op < 0:
        delay = choose.uniform(0, 3)
    point = ""
    if options.policy in ("checkpointer", "callback") and who in ("rank", "leader") and choose.random() < 0.4:
        parts = PART_POINTS if len(options.nodes) > 1 and not options.per_node else []
        who, op = "leader", max(op, 0) if options.policy == "checkpointer" else 0
        point = choose.choice(RESTORE_POINTS if run and choose.random() < 0.5 else SAVE_POINTS + parts)
        if point in RESTORE_POINTS:
            op = -1
    rank = choose.randrange(options.ranks)
    if point and point not in (*RESTORE_POINTS, "captured", *PART_POINTS) and not options.per_node:
        rank = 0  # rank 0 writes manifests
    number = choose.choice([9, 9, 15]) if who == "launcher" else 9
    return Kill(who, rank, op, sub, delay, point, number)


def plan(seed: int) -> Plan:
    """Returns the plan of a seed, always the same."""
    choose = random.Random(seed)
    frame = _frame(choose)
    options = _options(choose, seed, frame)
    while rules.objection(options) is not None:
        options = _options(choose, seed, frame)
    options = _bounded(choose, options)
    operations = script(choose, options)
    count = 0 if options.policy == "none" else choose.choice([1, 1, 1, 2, 2, 3])
    kills: list[Kill] = []
    while len(kills) < count:
        kill = _kill(choose, options, operations, len(kills))
        if not rules.avoided(options, kill):
            kills.append(kill)
    edits = tuple(
        choose.randrange(1, 1000)
        if options.policy == "live" and len(options.nodes) == 1 and choose.random() < 0.6
        else 0
        for _ in kills
    )
    return Plan(options, operations, tuple(kills), edits)
