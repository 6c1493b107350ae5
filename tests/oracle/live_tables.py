"""Tables of a named job between two of its runs: read and written by another process, without TensorFlow."""

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
    """The tables of a job that has one node, in their order; empty: they are not all there."""
    found = {path.name.rpartition("table")[2]: path for path in tables.glob("*/t[0-9]*-table*") if path.is_dir()}
    return [found[str(t)] for t in range(count)] if len(found) == count else []


def read(folders: list[Path]) -> Arrays:
    """The tables as a snapshot. A writer that was killed in the middle of a step has left the one before it."""
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
    """The states that tables are in."""
    return [at for at, state in candidates.items() if not comparison.problems(state, {0: arrays}, tables_only=True)]


def edit(folders: list[Path], options: Options, number: int) -> list[str]:
    """Assigns and erases keys of each table; returns what its change marks tell wrongly, in words."""
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
