"""Versions of a `tsps.Table` alone, written without TensorFlow: what an export does with the tables of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.serving import ServingTable, fault_points, table_files
from tf_sparse_ps.serving.base_writer import BaseWriter
from tf_sparse_ps.serving.version import Version, VersionManifest
from tf_sparse_ps.serving.version_builder import NO_BASES, VersionBuilder
from tf_sparse_ps.table import Table

ASSET = "words"
RULE = optimizers.SGD(learning_rate=1.0)


def make_table(folder: Path, dim: int, **options: Any) -> Table:
    """Returns a new table in a new group."""
    options.setdefault("initializer", "uniform")
    config = TableConfig("words", dim, optimizer=RULE, seed=3, **options)
    return Table.create(folder / ASSET, config)


def write(
    path: Path,
    table: Table,
    base: Path | None = None,
    rows: str | None = None,
    base_writer: BaseWriter | None = None,
) -> None:
    """Writes a version of a table: all rows, or what has changed since a version."""
    earlier = None if base is None else Version(base).tables[0]
    facts = table_files.facts_of(table, rows=rows, hash_seed=None if earlier is None else earlier.hash_seed)
    with VersionBuilder(path, "test") as builder:
        mark = table.mark_changes()
        with table.scan(slots=False, since=None if earlier is None else earlier.marks[0]) as scan:
            files = builder.new_table(ASSET)
            if earlier is None or base is None:
                files.add_base(facts, scan, show_progress=False)
            else:
                assert scan.erased is not None
                files.link(base, earlier, NO_BASES if base_writer is None else base_writer.bases(earlier))
                files.add_layer(facts, scan)
                files.merge()
            entry = files.finish("words", facts, step=scan.step, marks=[mark], absent="initial")
            fault_points.reach("tables_ready")
        builder.finish(VersionManifest(id="0", step=scan.step, tables=(entry,), variables=(), versions={}))
    if base_writer is not None:
        base_writer.begin(Version(path))


def must_equal(path: Path, table: Table) -> ServingTable:
    """Compares a version with the present rows of a table, bit for bit."""
    return must_have(path, *table_content(table), table)


def table_content(table: Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], int]:
    """Returns the keys, the rows and the step of a table."""
    keys = np.sort(table.keys())
    return keys, table.lookup(keys), table.step


def must_have(
    path: Path, keys: npt.NDArray[np.int64], rows: npt.NDArray[np.float32], step: int, table: Table
) -> ServingTable:
    """Compares a version with keys and rows. Absent keys are compared with those of a table."""
    served = ServingTable.open(path, verify=True)
    found = np.sort(np.concatenate([np.empty(0, np.int64), *served.key_parts()]))
    np.testing.assert_array_equal(found, keys)
    np.testing.assert_array_equal(served.lookup(keys), served.as_stored(rows))
    assert served.contains(keys).all()
    assert served.step == step
    absent = np.arange(-500, 0)  # no test writes them
    np.testing.assert_array_equal(served.lookup(absent), served.as_stored(table.lookup(absent)))
    return served
