"""`TableAsset`: names a table in graphs, so that a SavedModel can be served on another machine.

The path of a lookup is a captured tensor, not a constant. While the program trains, its value is the path of the table.
A SavedModel treats the captured tensors of `tf.saved_model.Asset` objects as files, and contains copies of them. For a
table this is a serving file (`serving/table_files.py`), which the op library maps. So the SavedModel has no path of
this machine.

TensorFlow would copy a large file slowly. So it copies a small one, whose place the serving file takes at the end of
the save. The anchor tracks the asset, because Keras's ExportArchive keeps only the variables of a layer.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tf_sparse_ps._compat import _tensorflow
from tf_sparse_ps.folders import Trust, remove_folder
from tf_sparse_ps.layers import saving
from tf_sparse_ps.serving import table_files

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding

_PREFIX = "tf_sparse_ps-export-"
_ASSETS = "assets"
_UNFINISHED = "tf_sparse_ps: this export did not end. Export the model again. "


class TableAsset(_tensorflow.ExportedAsset):
    """The path of a table in graphs. Its attribute `asset_path` is a string scalar."""

    def __init__(self, binding: TableBinding) -> None:
        super().__init__(binding.path_tensor)
        self._binding = binding

    def export(self) -> str:
        """Writes the table, without slots, to a file that TensorFlow copies or that is moved. Returns its path."""
        saving.claim()
        if (asset_of := saving.asset_of()) is not None:  # tsps.export writes the tables itself
            saving.at_end(self.exported)
            return asset_of(self._binding)
        name = f"{os.path.basename(self._binding.path)}.tfsps"
        target = saving.target()
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=target)
        saving.at_end(_remove, folder)
        path = os.path.join(folder, name)
        with saving.content(self._binding, "exporting", slots=False) as content:
            table_files.write_base(Path(path), table_files.facts_of(self._binding.reader()), content)
        saving.at_end(self.exported)
        if target is None:
            return path
        _unlink(os.path.join(target, _ASSETS), name)
        copied = os.path.join(folder, "copied", name)
        mark = _UNFINISHED + secrets.token_hex(16)
        os.mkdir(os.path.dirname(copied))
        Path(copied).write_text(mark)
        saving.at_end(_take_place, path, target, mark)
        return copied


def _unlink(assets: str, name: str) -> None:
    """Removes the names of a table's files of an earlier SavedModel: TensorFlow would write into them.

    Processes that serve the earlier SavedModel have these files mapped, and keep them.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(assets):
            if entry.name == name or entry.name.startswith(f"{name}_"):
                os.unlink(entry.path)


def _take_place(path: str, target: str, mark: str) -> None:
    """Puts a file in the place of the asset of a SavedModel that has a mark as its content."""
    with contextlib.suppress(OSError):  # the save has failed
        for entry in os.scandir(os.path.join(target, _ASSETS)):
            if entry.is_file() and entry.stat().st_size == len(mark) and Path(entry.path).read_text() == mark:
                os.replace(path, entry.path)


def _remove(folder: str) -> None:
    with contextlib.suppress(OSError):
        remove_folder(folder, Trust.GROUP)
