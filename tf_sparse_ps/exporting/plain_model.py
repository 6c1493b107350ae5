"""SavedModels without custom ops: any TensorFlow loads them, and their tables are variables."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2

from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.layers import saving

_GRAPH = "saved_model.pb"


def write(model: Any, bindings: Sequence[TableBinding], folder: Path) -> None:
    """Writes the SavedModel of a model.

    Args:
      model: The Keras model.
      bindings: Its tables.
      folder: The folder, which exists.

    Raises:
      UnsupportedError: A table is too large, or sharded, or the model has other ops of this library.
    """
    sharded = [binding.config.name for binding in bindings if binding.placement == "sharded"]
    if sharded:
        raise UnsupportedError(f"tables {sharded} are sharded, so they cannot be exported without custom ops")
    with saving.with_plain_tables(bindings), contextlib.redirect_stdout(io.StringIO()):  # Keras prints the signature
        model.export(os.fspath(folder))
    content = saved_model_pb2.SavedModel.FromString((folder / _GRAPH).read_bytes())
    ops = {
        node.op
        for graph in content.meta_graphs
        for nodes in (graph.graph_def.node, *(function.node_def for function in graph.graph_def.library.function))
        for node in nodes
        if node.op.startswith("Tsps")
    }
    if ops:
        raise UnsupportedError(f"the model uses {sorted(ops)}, which plain TensorFlow lacks. Export it with custom ops")
