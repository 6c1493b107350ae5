"""Exports a checkpoint to files that other programs can read. Needs no TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.checkpoints import array_file, comparison, manifest
from tf_sparse_ps.checkpoints.compaction import write_rows
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.folders import Folder, Trust

_FACTS = "checkpoint.json"


def export(checkpoint: StoredCheckpoint, folder: Path) -> list[str]:
    """Writes all rows of each table to `<table>.tfsps`, dense variables to `variables.npz`, and `checkpoint.json`.

    `tsps.Table.load_parameter_file` and `restore` read the tables. `numpy.load` reads the variables, by their names;
    bfloat16 is exported as float32. `checkpoint.json` has step, epoch, batch and the kinds of variables.

    Args:
      checkpoint: The checkpoint, with what it builds on.
      folder: The folder to write to. It is made if it is not there, and must be empty.

    Returns:
      The names of the files.

    Raises:
      InvalidArgumentError: The folder has files.
      OSError: From the file system.
    """
    with Folder.open(folder, Trust.GROUP, make=True) as opened:
        names_there = opened.names()
    if names_there:
        raise InvalidArgumentError(f"{folder} has files: export to a folder that is empty, or is not there")
    content = checkpoint.manifest
    tables = [str(table["name"]) for table in content.row_tables]
    files = []
    for number, table in enumerate(tables):
        is_plain = tables.count(table) == 1 and "/" not in table
        files.append(f"{table}.tfsps" if is_plain else manifest.table_file_name(number, table))
        write_rows(StoredRows(checkpoint, number), folder / files[-1], table)
    variables = comparison.variable_names(content.variables)
    _, arrays = array_file.read(checkpoint.path / manifest.VARIABLES)
    values = {variables[number]: _numeric(array, str(content.variables[number]["dtype"])) for number, array in arrays}
    with open(folder / manifest.VARIABLES, "wb") as stream:
        np.savez(stream, **values)  # type: ignore[arg-type]
    facts = {
        "checkpoint": checkpoint.path.name,
        "step": content.step,
        "step_of_the_tables": content.table_step,
        "epoch": content.epoch,
        "batch": content.batch,
        "tables": dict(zip(files, tables, strict=True)),
        "variables": {name: entry["kind"] for name, entry in zip(variables, content.variables, strict=True)},
    }
    (folder / _FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    return [*files, manifest.VARIABLES, _FACTS]


def _numeric(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Returns a stored array in a type of NumPy's. Types that NumPy lacks stay bits, except for bfloat16."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array
