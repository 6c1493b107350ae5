"""The graph and the dense weights of a version: a SavedModel, whose tables are written separately."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras, _tensorflow
from tf_sparse_ps.job.table_binding import TableBinding, binding_of
from tf_sparse_ps.layers import saving

_GRAPH = "saved_model.pb"
_VARIABLES = "variables/variables"


def write(model: Any, folder: Path, signatures: Mapping[str, Any] | None, assets: Sequence[str]) -> Any:
    """Writes the SavedModel of a model. Its assets in place of tables are empty files.

    Args:
      model: The Keras model.
      folder: The folder, which exists.
      signatures: Functions by name; None: what `model.export` makes.
      assets: The names of the tables' folders.

    Returns:
      The object that was saved.
    """
    with tempfile.TemporaryDirectory(prefix="tf_sparse_ps-export-") as empty_files:
        for asset in assets:
            Path(empty_files, asset).touch()

        def asset_of(binding: TableBinding) -> str:
            return os.path.join(empty_files, os.path.basename(binding.path))

        with saving.writing_tables(asset_of) as written:
            if signatures is None:
                with contextlib.redirect_stdout(io.StringIO()):  # Keras prints the signature
                    model.export(os.fspath(folder))
            else:
                module = tf.Module()
                module.model = model
                tf.saved_model.save(module, os.fspath(folder), signatures=dict(signatures))
    return written[0]


def graph_checksum(folder: Path) -> str:
    """Returns a checksum of the graph of a SavedModel."""
    return hashlib.blake2b((folder / _GRAPH).read_bytes(), digest_size=16).hexdigest()


def variable_keys(model: Any, root: Any, folder: Path) -> tuple[tuple[str, str], ...]:
    """Returns, for each dense variable in a SavedModel, its key there and its name in the model.

    Args:
      model: The model.
      root: The object that was saved.
      folder: The SavedModel.
    """
    names = {
        _tensorflow.resource_of(_keras.tf_variable(variable)): _keras.variable_name(variable)
        for variable in _keras.all_variables(model)
        if binding_of(variable) is None
    }
    found = []
    for key, variable in _tensorflow.variables_by_key(root, os.fspath(folder / _VARIABLES)):
        if (name := names.get(_tensorflow.resource_of(_keras.tf_variable(variable)))) is not None:
            found.append((key, name))
    return tuple(found)
