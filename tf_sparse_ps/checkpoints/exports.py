"""A checkpoint as files that need nothing of this package's checkpoints to be read. Needs no TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.checkpoints import array_file, comparison, manifest
from tf_sparse_ps.checkpoints.compaction import write_rows
from tf_sparse_ps.checkpoints.directory import Checked
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.folders import Folder, Trust

_FACTS = "checkpoint.json"


def export(checkpoint: Checked, folder: Path) -> list[str]:
    """Writes all rows of each table to `<table>.tfsps`, dense variables to `variables.npz`, and `checkpoint.json`.

    `tsps.Table.load_parameter_file` and `restore` read the former, `numpy.load` the latter, by the variables' names;
    bfloat16 is float32 there. `checkpoint.json` has step, epoch, batch and the kinds of variables.

    Args:
      checkpoint: With what it builds on.
      folder: Made if it is not there; must be empty.

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
    names = [str(one["name"]) for one in content.tables]
    files = []
    for number in range(len(names)):
        plain = names.count(names[number]) == 1 and "/" not in names[number]
        files.append(f"{names[number]}.tfsps" if plain else manifest.name_of_file(number, names[number]))
        write_rows(StoredRows(checkpoint, number), folder / files[-1], names[number])
    own = comparison.variable_names(content.variables)
    _, arrays = array_file.read(checkpoint.path / manifest.VARIABLES)
    values = {own[number]: _numeric(array, str(content.variables[number]["dtype"])) for number, array in arrays}
    with open(folder / manifest.VARIABLES, "wb") as stream:
        np.savez(stream, **values)  # type: ignore[arg-type]
    facts = {
        "checkpoint": checkpoint.path.name,
        "step": content.step,
        "step_of_the_tables": content.table_step,
        "epoch": content.epoch,
        "batch": content.batch,
        "tables": dict(zip(files, names, strict=True)),
        "variables": {name: one["kind"] for name, one in zip(own, content.variables, strict=True)},
    }
    (folder / _FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    return [*files, manifest.VARIABLES, _FACTS]


def _numeric(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """What was stored, in a type of NumPy's; of those that it has not, but for bfloat16, the bits."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array
