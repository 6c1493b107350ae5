"""The group with rows on disk that is mutated: what its writer leaves, and what a reader and the next writer do."""

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
DISK = "disk"  # in the group's folder, so that a copy of that has both tiers
_DIM, _STEP, _KEYS = 8, 500, 6000
_MOST_ROWS = 1 << 14
_MEMORY = 13_200_000  # for some 2,300 rows; all but 0.5 MB of it is kept for buffers
_KILLED_AT = "record_moves_declared:1"


def config(group: Path) -> TableConfig:
    """Of the group's only table."""
    storage = Tiered(group / DISK, _MEMORY)
    return TableConfig(
        "far", _DIM, seed=1, max_rows=_MOST_ROWS, optimizer=optimizers.Adagrad(learning_rate=0.5), storage=storage
    )


def _train(table: Table, keys: Ints, salt: int) -> None:
    table.apply_gradients(keys, rows_of(keys, _DIM, salt))


def make_group(group: Path, state: str) -> None:
    """Makes the group, in the folder in which copies of it will be opened: it says where its rows on disk are.

    A build without fault points has none where a writer could be killed: it ends its step.
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
    """Rows come from the disk, others go there."""
    with Table.open(group / "far", "r+", config(group)) as table:
        _train(table, spread(100, _STEP), 6)


def read(group: Path) -> Seen:
    """What a reader sees: reports, all keys with rows and slots, look-ups of rows that are there and of others."""
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
    """What the next writer makes of the group: rows come from the disk and go there, compaction moves some, some are
    erased and assigned, an optimizer is replaced, which writes the log anew. Ends with a reader's look at all of it."""
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
