"""Twelve jobs whose bytes and step times `tf-sparse-ps plan` estimates, and that run here.

The formulas of the plan were made with the first six alone, and tested with the other six (`HELD_OUT`).

The suite `plan` prints both figures. A step looks up a batch of Zipf ids and applies a gradient for each of them.
Jobs of one rank use `tsps.Table`. Jobs of two ranks have layers, and TensorFlow's collectives connect the ranks
(`benchmarks/plan_job.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tf_sparse_ps import optimizers, plan
from tf_sparse_ps.config import TableConfig, Tiered
from tf_sparse_ps.plan import memory
from tf_sparse_ps.table import Table, several_tables

ROOT = Path(__file__).resolve().parents[1]
EXPONENT = 1.05
FILL = 16_384  # rows per step that fills a table
_STEPS, WARMUP = 20, 4
_TIER_STEPS = 60  # before the first measurement, in which frequent rows come into memory
_REPETITIONS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A job.

    Attributes:
      rows: The number of rows of each table.
      dims: The number of elements per row of each table.
      optimizer: The name of the update rule.
      ids: The number of ids of a rank per step and table.
      dtype: The type of the rows.
      memory: The memory of each tiered table; None: all rows are in memory.
      ranks: The number of ranks.
    """

    rows: int
    dims: tuple[int, ...]
    optimizer: str
    ids: int
    dtype: str = "float32"
    memory: str | None = None
    ranks: int = 1


CASES = {
    "narrow, Adam": Case(1_200_000, (8,), "adam", 100_000),
    "wide, Adagrad": Case(200_000, (128,), "adagrad", 100_000),
    "bfloat16": Case(600_000, (32,), "adagrad", 100_000, dtype="bfloat16"),
    "tiered": Case(1_200_000, (16,), "adagrad", 20_000, memory="96MiB"),
    "several tables": Case(200_000, (8, 16, 32, 64), "adagrad", 30_000),
    "two ranks": Case(500_000, (64,), "adagrad", 50_000, ranks=2),
}
HELD_OUT = {
    "narrow, SGD": Case(800_000, (4,), "sgd", 60_000),
    "wide, Adam": Case(150_000, (64,), "adam", 40_000),
    "FTRL": Case(300_000, (32,), "ftrl", 50_000),
    "float16": Case(400_000, (48,), "adagrad", 30_000, dtype="float16"),
    "tiered, Adam": Case(1_000_000, (8,), "adam", 10_000, memory="64MiB"),
    "two ranks, Adam": Case(600_000, (16,), "adam", 80_000, ranks=2),
}
ALL = CASES | HELD_OUT


@dataclasses.dataclass(frozen=True)
class Figures:
    """The bytes of a job's tables, and the milliseconds of its steps in each repetition: measured and expected."""

    bytes: int
    expected_bytes: int
    ms: tuple[float, ...]
    expected_ms: tuple[float, ...]


def compare(case: Case, group: Path, disk: Path, repetitions: int = _REPETITIONS) -> Figures:
    """Runs a job, and plans it.

    Args:
      case: The job.
      group: A folder in shared memory, for the tables.
      disk: A folder on a disk, for the rows of a tiered table.
      repetitions: The number of times that steps and costs are measured, in turns.
    """
    if case.ranks > 1:
        return _compare_ranks(case, group, disk, repetitions)
    measured, expected = [], []
    with tables(case, group, disk) as made:
        for seed in range(_TIER_STEPS // (_STEPS + WARMUP) if case.memory else 0):
            _step_ms(case, made, 100 + seed)
        for repetition in range(repetitions):
            before = plan.measure(os.fspath(group.parent))
            measured.append(_step_ms(case, made, 5 + repetition))
            after = plan.measure(os.fspath(group.parent))
            expected.append(expected_ms(case, disk, _least(before, after)))
        size = table_bytes(made)
    return Figures(size, expected_bytes(case, disk), tuple(measured), tuple(expected))


def cores() -> int:
    """Returns the number of cores of this process."""
    return len(os.sched_getaffinity(0))


def _least(*costs: plan.Costs) -> plan.Costs:
    names = [field.name for field in dataclasses.fields(plan.Costs)]
    return min(costs, key=lambda each: sum(getattr(each, name) for name in names if name != "call_ns"))


@contextlib.contextmanager
def tables(case: Case, group: Path, disk: Path | None, rows: int | None = None) -> Iterator[list[Table]]:
    """Makes the tables of a job, with all their rows, and removes them."""
    made = []
    try:
        with contextlib.ExitStack() as stack:
            for config in configs(case, disk):
                table = stack.enter_context(Table.create(group / config.name, config))
                made.append(table)
                keys = np.random.default_rng(1).permutation(rows or case.rows)
                for part in np.array_split(keys, -(-len(keys) // FILL)):
                    table.apply_gradients(part, np.full((len(part), config.dim), 1e-3, np.float32))
            time.sleep(0.3)  # the helper grows files
            yield made
    finally:
        shutil.rmtree(group, ignore_errors=True)


def configs(case: Case, disk: Path | None) -> list[TableConfig]:
    """Returns the configurations of a job's tables. `disk` is the folder of a tiered one."""
    rule = optimizers.names.BY_NAME[case.optimizer](learning_rate=0.01)
    storage: Any = "memory" if case.memory is None or disk is None else Tiered(disk, case.memory)
    return [
        TableConfig(f"t{i}", dim, optimizer=rule, dtype=case.dtype, seed=i, storage=storage)
        for i, dim in enumerate(case.dims)
    ]


def table_bytes(made: Sequence[Table]) -> int:
    """Returns the bytes in memory of tables."""
    return sum(int(table.stats()["bytes"]) for table in made)


def expected_bytes(case: Case, disk: Path | None, rows: int | None = None) -> int:
    """Returns the estimate of `table_bytes`."""
    return sum(memory.estimate(config, rows or case.rows, case.ids).table for config in configs(case, disk))


def zipf_ids(case: Case, seed: int) -> np.ndarray:
    """Returns Zipf ids, int64[steps, ids]."""
    law = np.arange(1, case.rows + 1, dtype=np.float64) ** -EXPONENT
    draw = np.random.default_rng(seed)
    ranks = np.searchsorted(np.cumsum(law) / law.sum(), draw.random((_STEPS + WARMUP, case.ids)))
    return np.random.default_rng(7).permutation(case.rows)[np.minimum(ranks, case.rows - 1)]


def _step_ms(case: Case, made: Sequence[Table], seed: int) -> float:
    """Returns the milliseconds of a step: the least of those in memory, the median if the disk takes part."""
    times = []
    gradients = {table.config.dim: np.full((case.ids, table.config.dim), 1e-3, np.float32) for table in made}
    for step, ids in enumerate(zipf_ids(case, seed)):
        begin = time.perf_counter()
        for table in made:
            table.lookup(ids)
        several_tables.step({table: (ids, gradients[table.config.dim], None) for table in made})
        if step >= WARMUP:
            times.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(times) if case.memory else np.quantile(times, 0.1))


def expected_ms(case: Case, disk: Path, costs: plan.Costs) -> float:
    """Returns the estimate of a step's milliseconds."""
    document = {
        "tables": [
            {
                "name": config.name,
                "dim": config.dim,
                "rows": case.rows,
                "dtype": case.dtype,
                "optimizer": case.optimizer,
                "storage": config.storage.get_config() if isinstance(config.storage, Tiered) else "memory",
                "ids_per_sample": 1,
                "zipf": EXPONENT,
            }
            for config in configs(case, disk)
        ],
        "batch_size": case.ids,
        "ranks_per_machine": case.ranks,
        "disk": {"path": os.fspath(disk), "bytes": "100GB", "reads_per_second": _reads_per_second(case, disk)},
    }
    machine = {"memory": 1 << 40, "shared_memory": 1 << 40, "cores": cores()}
    config = plan.parse(document, machine)
    skews = {table.name: plan.Zipf(table.rows, table.zipf) for table in config.tables}
    return plan.Planner(config, skews, costs).plan().step.total


def _reads_per_second(case: Case, disk: Path) -> float | None:
    return plan.measure_disk(os.fspath(disk), "/dev/shm") if case.memory else None


def _compare_ranks(case: Case, group: Path, disk: Path, repetitions: int) -> Figures:
    measured, expected, size = [], [], 0
    group.mkdir(parents=True, exist_ok=True)
    for _ in range(repetitions):
        costs = plan.measure(os.fspath(group))
        out = disk / "figures.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "tf_sparse_ps", "run", "-np", str(case.ranks), "--collectives", "tensorflow"),
                *(sys.executable, "-m", "benchmarks.plan_job", json.dumps(dataclasses.asdict(case)), os.fspath(out)),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "TFSPS_DIR": os.fspath(group)},
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=300,
        )
        figures = json.loads(out.read_text())
        measured.append(figures["ms"])
        expected.append(expected_ms(case, disk, costs))
        size = int(figures["bytes"])
    shutil.rmtree(group, ignore_errors=True)
    return Figures(size, expected_bytes(case, disk), tuple(measured), tuple(expected))
