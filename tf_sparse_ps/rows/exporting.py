"""`export_rows`: writes rows of a table to a file that other programs can read. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tf_sparse_ps.rows import formats, opening
from tf_sparse_ps.rows.selection import Selection
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.urls import local_path


def export_rows(
    source: Any,
    file: str | os.PathLike[str],
    *,
    keys: npt.ArrayLike | None = None,
    key_range: tuple[int, int] | None = None,
    slots: bool = False,
    table: str | None = None,
    progress: bool = True,
) -> int:
    """Writes rows to a Parquet file, a NumPy archive or a CSV file (docs/rows.md), completely or not at all.

    The file also has the table's name, width, type, optimizer and step. Metadata planes are not written. The open table
    of a sharded job has the rows of one machine; a warning says so.

    Args:
      source: A `tsps.Table`, a `tsps.ServingTable`, or a path: of a table or its group, a sparse-parameter file, a
        checkpoint or a directory of them, a served version or a directory of them, another file of rows, or a .keras,
        .h5 or TensorFlow checkpoint file of a model.
      file: The file, which ends with .parquet, .npz or .csv. It is replaced if it exists.
      keys: The keys whose rows are written, integers or strings. Keys without a row are left out. None: all.
      key_range: The first key that is written, and the first one after these that is not. None: all.
      slots: Whether to write the optimizer's slots too.
      table: The name of the table in a group, a checkpoint or a version, or of the weight in a file of a model. None:
        the only one.
      progress: Whether to show a progress bar if the call takes longer than two seconds.

    Returns:
      The number of rows.

    Raises:
      NotFoundError: There is no such source or table.
      InvalidArgumentError: An argument has a wrong value.
      UnsupportedError: `slots` is True and the source has none; or pyarrow is not installed.
      DamagedFileError: A file of the source is damaged.

    Example:
      >>> export_rows("checkpoints", "words.parquet", table="words", slots=True)
    """
    path = Path(local_path(file, "file"))
    opened = opening.opened(source, table)
    selection = Selection(keys, key_range=key_range)
    if slots:
        opened.facts.check_slots(opened.name)
    if opened.shard is not None:
        warnings.warn(
            f"{opened.name} has the rows of {opened.shard} only. Export on each machine, or export a checkpoint",
            stacklevel=2,
        )
    facts = opened.facts if slots else opened.facts.without_slots()
    written = 0
    with (
        formats.writing(path, facts) as writer,
        bar(opened.at_most, f"export {path.name}", show=progress) as progress_bar,
        contextlib.closing(opened.selected(selection, slots)) as blocks,
    ):
        for block, n_read in blocks:
            if len(block.keys):
                writer.append(block)
            written += len(block.keys)
            progress_bar.update(n_read)
    return written
