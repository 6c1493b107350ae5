"""`TableAsset`: names a table in graphs, so that a SavedModel can be served on another machine.

The path of a lookup is a captured tensor, not a constant. While the program trains, its value is the path of the table.
A SavedModel treats the captured tensors of `tf.saved_model.Asset` objects as files, and contains copies of them. For a
table this is a sparse-parameter file, which is written with the SavedModel. In the loaded model, the value of the
tensor is the path of that file, which the op library opens like a table. So the SavedModel has no path of this machine.

The anchor tracks the asset, because Keras's ExportArchive keeps only the variables of a layer.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

from tf_sparse_ps._compat import _tensorflow
from tf_sparse_ps.folders import Trust, remove_folder
from tf_sparse_ps.layers import saving
from tf_sparse_ps.table import parameter_files

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding


class TableAsset(_tensorflow.ExportedAsset):
    """The path of a table in graphs. Its attribute `asset_path` is a string scalar."""

    def __init__(self, binding: TableBinding) -> None:
        super().__init__(binding.path_tensor)
        self._binding = binding

    def export(self) -> str:
        """Writes the table, without slots, to a file that is deleted when the save ends. Returns its path."""
        saving.claim()
        folder = tempfile.mkdtemp(prefix="tf_sparse_ps-export-")
        saving.at_end(_remove, folder)
        path = os.path.join(folder, f"{os.path.basename(self._binding.path)}.tfsps")
        with saving.content(self._binding, "exporting", slots=False) as content:
            parameter_files.write(self._binding.reader(), content, path, shard=None, slots=False)
        saving.at_end(self.exported)
        return path


def _remove(folder: str) -> None:
    with contextlib.suppress(OSError):
        remove_folder(folder, Trust.GROUP)
