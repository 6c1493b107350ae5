"""Loads parameter files that a run has exported into a new table, and compares them with the model."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path

from tests.oracle.comparison import Comparison
from tests.oracle.options import Options
from tests.oracle.snapshot import of_table
from tests.oracle.state import State


def problems(path: Path, options: Options, comparison: Comparison, state: State) -> list[str]:
    """Describes how a file `export-<position>-table<t>-<node>.tfsps` differs from the model."""
    from tf_sparse_ps.config import TableConfig
    from tf_sparse_ps.table import Table

    _, _, name, node = path.stem.split("-")
    t, rank = int(name.removeprefix("table")), options.nodes[int(node)][0]
    table = options.tables[t]
    folder = Path(tempfile.mkdtemp(prefix="tsps-oracle-export-", dir="/dev/shm"))
    try:
        config = TableConfig(name, table.dim, key_limit=table.keys if table.bounded else None, dtype=table.dtype)
        with Table.create(folder / "group" / name, config) as fresh:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a file of one shard does not have the whole table
                fresh.load_parameter_file(path, progress=False)
            content = of_table(fresh)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    arrays = {f"table{t}.{name}": array for name, array in content.items()}
    return comparison.of_table(state, t, rank, arrays)
