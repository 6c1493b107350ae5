"""`import_rows`: reads files of rows and of models into tables. Only checkpoints of TensorFlow need TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.rows import opening, sources, targets
from tf_sparse_ps.stored.paths import PARAMETER_FILE, kind_of
from tf_sparse_ps.urls import local_path


def import_rows(
    file: Any,
    into: str | os.PathLike[str],
    *,
    table: str | None = None,
    variable: str | None = None,
    slots: bool = True,
    progress: bool = True,
) -> int:
    """Reads rows from a file and writes them into a sparse-parameter file, a checkpoint or a table (docs/rows.md).

    Rows replace those of the same keys; other rows stay. All rows are read and checked before one is written, which
    needs 8 bytes of memory for each.

    Args:
      file: A file that ends with .parquet, .npz or .csv; a .keras or .h5 file of Keras, or the prefix of a checkpoint
        of TensorFlow, whose row i is that of key i; or another source of `export_rows`.
      into: A new file that ends with .tfsps; a directory of checkpoints, whose newest one is written again; or the path
        of a table, or its group, in the folder of a named job that does not run. Each machine of such a job imports
        into its own table.
      table: The name of the table in `into`. None: its only table.
      variable: The name of the weight or its layer in a file of a model, or of the table in another source. None: the
        only one of an embedding.
      slots: Whether to take the slots of the optimizer, if the file has them. Otherwise rows that exist keep theirs,
        and new rows get initial ones.
      progress: Whether to show a progress bar if the call takes longer than two seconds.

    Returns:
      The number of rows that were written.

    Raises:
      NotFoundError: The file, `into`, the weight or the table does not exist.
      TableExistsError: The new file exists.
      InvalidArgumentError: A file is of another kind, or rows have another width.
      KeyRangeError: A key is outside a bounded table. Nothing is written.
      StateError: A key occurs twice; or slots are of another optimizer. Nothing is written.
      WriterLockedError: The job of the table is running, or another process saves to the directory.
      DamagedFileError: A file is damaged. Nothing is written.

    Example:
      >>> import_rows("words.parquet", "checkpoints", table="words")
    """
    source = opening.opened(file, variable)
    target = Path(local_path(into, "into"))
    take = slots and source.facts.optimizer != "none"
    if target.suffix == PARAMETER_FILE:
        if table is not None:
            raise InvalidArgumentError(f"{target} has one table, so table= must be left out. Received: {table!r}")
        return targets.write_parameter_file(source, target, slots=take, progress=progress)
    found = kind_of(target) if target.is_dir() else None
    if found is not None and found[0] in ("group", "table"):
        folder = found[1] if found[0] == "table" else found[1] / sources.chosen(*found, table).name
        return targets.write_table(source, folder, slots=take, progress=progress)
    if found is not None and found[0] == "checkpoint":
        if found[1] == target:
            raise InvalidArgumentError(
                f"{target} is a checkpoint, which never changes. Import into its directory, {target.parent}, whose "
                "newest checkpoint is written again"
            )
        return targets.write_checkpoint(source, target, table, slots=take, progress=progress)
    raise InvalidArgumentError(
        f"{target} is not a place for rows. Name a new file that ends with {PARAMETER_FILE}, a directory of "
        "checkpoints, or the folder of a table or its group"
    )
