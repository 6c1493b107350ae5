"""Sources of rows that need TensorFlow: layers with tables, and layers and matrices of Keras."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.errors import InvalidArgumentError, UnsupportedError
from tf_sparse_ps.layers import saving
from tf_sparse_ps.layers.table_layer import TableLayer
from tf_sparse_ps.rows import opening, sources
from tf_sparse_ps.rows.selection import keys_of
from tf_sparse_ps.rows.sources import ArraySource, Source, TableSource
from tf_sparse_ps.stored.contents import LiveTable
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.scan import Block

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding

keras = _keras.keras


class LayerSource(TableSource):
    """The table of a layer in this job. All ranks read a sharded table together.

    Attributes:
      collective: Whether all ranks must read the blocks.
    """

    def __init__(self, binding: TableBinding) -> None:
        super().__init__(LiveTable(binding.reader()))
        self._binding, self.collective = binding, binding.placement == "sharded"
        self.name = f"the table of layer {binding.config.name!r}"
        self.identity = f"table {binding.ordinal} of this job"

    def blocks(self, slots: bool) -> Iterator[Block]:
        with saving.content(self._binding, "transferring", slots=slots) as content:
            for block in content:
                yield block._replace(metadata={})

    def entries(self, keys: Keys, slots: bool) -> Block | None:
        return None if self.collective else super().entries(keys, slots)


def binding_of_layer(layer: Any, table: str | None, name: str) -> TableBinding:
    """Returns a table of a layer.

    Args:
      layer: A layer of this library.
      table: The name of the table; None: the only one.
      name: The argument that is the layer, for messages.

    Raises:
      InvalidArgumentError: `layer` is no such layer, is not built, or has no such table.
    """
    if not isinstance(layer, TableLayer):
        raise InvalidArgumentError(
            f"`{name}` must be a tsps.Embedding, EmbeddingReduce or EmbeddingCollection. Received: "
            f"{type(layer).__name__}"
        )
    if not layer.bindings:
        raise InvalidArgumentError(
            f"layer {layer.name!r} has no table yet. Build it first: call the layer or its model on a batch, or build()"
        )
    found = [binding for binding in layer.bindings if table in (None, binding.config.name)]
    if len(found) != 1:
        raise InvalidArgumentError(
            f"layer {layer.name!r} has the tables {[binding.config.name for binding in layer.bindings]}. Name one of "
            f"them. Received: {table!r}"
        )
    return found[0]


def opened(source: Any, name: str, table: str | None) -> Source:
    """Returns a source, as `sources.opened`, which may also be a layer, arrays or a matrix.

    Args:
      source: The source.
      name: The name of the target's table. The table of this name is taken of several ones.
      table: The name of the table in the source. None: `name`, or the only one.
    """
    if isinstance(source, TableLayer):
        chosen = table
        if table is None and len(source.bindings) > 1:
            chosen = name
        return LayerSource(binding_of_layer(source, chosen, "source"))
    if isinstance(source, keras.layers.Embedding):
        return _of_keras_layer(source)
    if isinstance(source, tuple) and len(source) == 2:
        return ArraySource(keys_of(source[0], "keys of the source"), _array(source[1]))
    if not isinstance(source, (Source, *sources.OPENED)):
        matrix = _array(source)
        if matrix.ndim == 2 and matrix.dtype.kind == "f":
            return ArraySource(np.arange(len(matrix), dtype=np.int64), matrix, "the given matrix")
        raise InvalidArgumentError(
            "`source` must be a layer, a tsps.Table, a tsps.ServingTable, a path, a pair of arrays (keys, rows), or a "
            f"matrix of floats whose row i is that of key i. Received: {type(source).__name__}"
        )
    return opening.opened(source, sources.common_name(source, name) if table is None else table)


def _array(values: Any) -> Any:
    return np.asarray(values.numpy() if hasattr(values, "numpy") else values)


def _of_keras_layer(layer: Any) -> Source:
    if not layer.built:
        raise InvalidArgumentError(f"layer {layer.name!r} has no weights yet. Build it first")
    mode = getattr(layer, "quantization_mode", None)
    if mode is not None:
        raise UnsupportedError(
            f"layer {layer.name!r} has quantized weights ({mode}), which are no rows of floats. Transfer them from the "
            "model before it was quantized"
        )
    matrix = _array(keras.ops.convert_to_tensor(layer.embeddings) if _keras.IS_KERAS_3 else layer.embeddings)
    return ArraySource(np.arange(len(matrix), dtype=np.int64), matrix, f"layer {layer.name!r}")
