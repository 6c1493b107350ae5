"""Tables of a named job between two of its runs. Another process reads and writes them, without TensorFlow."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np

from tests.oracle import data
from tests.oracle.comparison import Arrays, Comparison
from tests.oracle.options import Options
from tests.oracle.snapshot import of_table
from tests.oracle.state import State


def paths(tables: Path, count: int) -> list[Path]:
    """Returns the tables of a job of one node, in their order; empty: some are missing."""
    path_of = {path.name.rpartition("table")[2]: path for path in tables.glob("*/t[0-9]*-table*") if path.is_dir()}
    return [path_of[str(t)] for t in range(count)] if len(path_of) == count else []


def read(folders: list[Path]) -> Arrays:
    """Returns the tables as a snapshot. If a writer was killed in a step, they have the step before it."""
    from tf_sparse_ps.table import Table

    arrays: Arrays = {}
    for t, folder in enumerate(folders):
        with Table.open(folder) as table:
            report = table.verify()
            if not report.ok:
                raise AssertionError(f"table {t} is damaged: {report.problems}")
            arrays |= {f"table{t}.{name}": array for name, array in of_table(table).items()}
            arrays["step"] = np.asarray(table.step)
    gc.collect()
    return arrays


def matching(comparison: Comparison, candidates: dict[tuple[int, ...], State], arrays: Arrays) -> list[tuple[int, ...]]:
    """Returns the positions of the states that the tables have."""
    return [at for at, state in candidates.items() if not comparison.problems(state, {0: arrays}, tables_only=True)]


def edit(folders: list[Path], options: Options, number: int) -> list[str]:
    """Assigns and erases keys of each table; describes what its change marks report wrongly."""
    from tf_sparse_ps.table import Table

    problems: list[str] = []
    for t, folder in enumerate(folders):
        pool = data.pool(options, t)
        assigned, rows, erased = data.edit(options, number, t)
        with Table.open(folder, "r+") as table:
            there = np.isin(pool[erased], table.keys())
            mark = table.mark_changes()
            table.assign(pool[assigned], rows)
            count = table.erase(pool[erased])
            changes = table.changes_since(mark)
            if count != int(there.sum()):
                problems.append(f"table {t}: erase() tells of {count} keys, not of {int(there.sum())}")
            if changes.everything:
                problems.append(f"table {t}: changes_since() does not know what has changed")
            elif not np.array_equal(np.sort(changes.written), np.sort(pool[assigned])):
                problems.append(f"table {t}: changes_since() tells of other keys than were assigned")
            elif not np.array_equal(np.sort(changes.erased), np.sort(pool[erased[there]])):
                problems.append(f"table {t}: changes_since() tells of other keys than were erased")
    gc.collect()
    return problems
