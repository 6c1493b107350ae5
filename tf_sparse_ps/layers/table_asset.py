"""`TableAsset`: how a table is named in a graph, so that a SavedModel can be served on another machine.

The lookup's path is not a constant but a captured tensor. While the program runs its value is the live table's path. A
SavedModel takes captured tensors of `tf.saved_model.Asset` objects for files that travel along: what is copied is a
sparse-parameter file, written when the SavedModel is, and in the loaded model the same tensor is that file's path,
which the op library opens like a table. So no path of this machine is in the SavedModel.

It is tracked by the anchor, because of a layer Keras's ExportArchive keeps the variables alone.
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
    """A table's path in a graph: `asset_path`, a scalar string."""

    def __init__(self, binding: TableBinding) -> None:
        super().__init__(binding.path_tensor)
        self._binding = binding

    def export(self) -> str:
        """Writes the table, without slots, to a file that is removed when the save is over."""
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
