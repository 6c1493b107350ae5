"""`TableAsset`: how a table is named in a graph, so that a SavedModel can be served on another machine.

The lookup's path is not a constant but a captured tensor. While the program runs its value is the live table's path. A
SavedModel takes captured tensors of `tf.saved_model.Asset` objects for files that travel along: what is copied is a
sparse-parameter file, written when the SavedModel is, and in the loaded model the same tensor is that file's path,
which the op library opens like a table. So no path of this machine is in the SavedModel.

It is tracked by the anchor, because of a layer Keras's ExportArchive keeps the variables alone. Private TensorFlow:
`_export_to_saved_model_graph`; and the `numpy` of one eager tensor is replaced while TensorFlow exports, because that
is where it reads which file to copy. Checked with TensorFlow 2.15 and 2.21.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_sparse_ps.layers import saving

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding


class TableAsset(tf.saved_model.Asset):
    """A table's path in a graph: `asset_path`, a scalar string."""

    def __init__(self, binding: TableBinding) -> None:
        super().__init__(binding.path_tensor)
        self._binding = binding

    def _export_to_saved_model_graph(self, tensor_map: Any, **kwargs: Any) -> Any:
        saving.claim()
        # TensorFlow copies the file at the end of the save.
        folder = tempfile.mkdtemp(prefix="tf_sparse_ps-export-")
        saving.at_end(shutil.rmtree, folder, ignore_errors=True)
        path = os.path.join(folder, f"{os.path.basename(self._binding.path)}.tfsps")
        self._binding.reader().export_parameter_file(path, slots=False)
        self.asset_path.numpy = lambda: np.array(path.encode(), dtype=object)
        saving.at_end(delattr, self.asset_path, "numpy")
        return super()._export_to_saved_model_graph(tensor_map=tensor_map, **kwargs)
