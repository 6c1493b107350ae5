"""The mutated group with rows on disk: how its writer leaves it, and what a reader and the next writer do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.mutate.content import Ints, Seen, look, rows_of, spread
from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.config.tiered import Tiered
from tf_sparse_ps.errors import TableError
from tf_sparse_ps.table import Table

STATES = ("tiered", "tiered, killed in a step")
DISK = "disk"  # in the group's folder, so that a copy of the folder has both tiers
_DIM, _STEP, _KEYS = 8, 500, 6000
_MOST_ROWS = 1 << 14
_MEMORY = 2_190_000  # space for some 2,300 rows; all but 0.5 MB of it is for buffers
_KILLED_AT = "record_moves_declared:1"


def config(group: Path) -> TableConfig:
    """Returns the configuration of the group's only table."""
    storage = Tiered(group / DISK, _MEMORY)
    return TableConfig(
        "far", _DIM, seed=1, max_rows=_MOST_ROWS, optimizer=optimizers.Adagrad(learning_rate=0.5), storage=storage
    )


def _train(table: Table, keys: Ints, salt: int) -> None:
    table.apply_gradients(keys, rows_of(keys, _DIM, salt))


def make_group(group: Path, state: str) -> None:
    """Makes the group in the folder in which copies of it will be opened, because it records where its rows are.

    A build without fault points has no place to kill a writer, so the writer ends its step.
    """
    with Table.create(group / "far", config(group)) as table:
        for start in range(0, _KEYS, _STEP):
            _train(table, spread(start, _STEP), start)
        assert table.stats()["rows_on_disk"] > _KEYS // 2
    if state != STATES[0]:
        command = [sys.executable, "-m", "tests.mutate.tiered", str(group)]
        ended = subprocess.run(command, env=os.environ | {"TFSPS_FAULT_KILL": _KILLED_AT}, timeout=60).returncode
        assert ended in (0, -signal.SIGKILL), ended


def take_a_step(group: Path) -> None:
    """Makes a step that reads rows from the disk and moves others to it."""
    with Table.open(group / "far", "r+", config(group)) as table:
        _train(table, spread(100, _STEP), 6)


def read(group: Path) -> Seen:
    """Reads as a reader does: reports, all keys with rows and slots, lookups of present and absent rows."""
    seen = Seen()
    try:
        with Table.open(group / "far") as table:
            seen.content.append(table.lookup(spread(_KEYS - 300, 600)))
            look({"far": table}, seen)
            seen.content.append(table.lookup(spread(0, 600)))
    except TableError as error:
        seen.error = f"{type(error).__name__}: {error}"
    return seen


def write(group: Path) -> Seen:
    """Writes as the next writer does: reads rows from the disk and moves others to it, compacts, erases and assigns
    rows, and replaces an optimizer, which rewrites the log. Then reads everything as a reader does.
    """
    seen = Seen()
    try:
        with Table.open(group / "far", "r+", config(group)) as table:
            for start in range(0, _KEYS + 1000, _STEP):
                _train(table, spread(start, _STEP), start + 1)
            some = spread(200, 400)
            table.assign(some, rows_of(some, _DIM, 10))
            table.erase(spread(400, 900))
            _train(table, spread(0, _STEP), 7)
            table.bind_optimizer(optimizers.Adam(learning_rate=0.5), replace=True)
            _train(table, spread(1500, _STEP), 8)
            seen.problems += table.verify().problems
        with Table.open(group / "far") as table:
            look({"far": table}, seen)
    except TableError as error:
        seen.error = f"{type(error).__name__}: {error}"
    return seen


if __name__ == "__main__":
    take_a_step(Path(sys.argv[1]))
