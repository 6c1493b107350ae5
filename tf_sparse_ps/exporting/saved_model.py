"""The graph and the dense weights of a version: a SavedModel, whose tables are written separately."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps._compat import _keras, _tensorflow
from tf_sparse_ps._version import __version__
from tf_sparse_ps.job.table_binding import TableBinding, binding_of
from tf_sparse_ps.layers import saving
from tf_sparse_ps.serving.version import ASSETS, TableEntry, VersionManifest

_GRAPH, _FINGERPRINT = "saved_model.pb", "fingerprint.pb"
_VARIABLES = "variables/variables"
Values = dict[str, npt.NDArray[Any]]


class ModelGraph:
    """The graph of a model, which was traced once. Later versions have it with other dense weights."""

    def __init__(self, model: Any, root: Any, folder: Path, assets: Sequence[str]) -> None:
        """Callers use `write`."""
        self._variables = {
            key: variable
            for key, variable in _tensorflow.variables_by_key(root, os.fspath(folder / _VARIABLES))
            if binding_of(variable) is None
        }
        names = {
            _tensorflow.resource_of(_keras.tf_variable(variable)): _keras.variable_name(variable)
            for variable in _keras.all_variables(model)
            if binding_of(variable) is None
        }
        found = {
            key: names.get(_tensorflow.resource_of(_keras.tf_variable(variable)))
            for key, variable in self._variables.items()
        }
        self._names = tuple((key, name) for key, name in found.items() if name is not None)
        self._files = {
            name: (folder / name).read_bytes() for name in (_GRAPH, _FINGERPRINT) if (folder / name).exists()
        }
        self._assets = {path.name: path.read_bytes() for path in (folder / ASSETS).glob("*") if path.name not in assets}
        reader = tf.train.load_checkpoint(os.fspath(folder / _VARIABLES))
        # Vocabularies, anchors of tables, and the names of objects: they do not change.
        self._others = {
            key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map() if key not in self._variables
        }

    @classmethod
    def write(cls, model: Any, folder: Path, signatures: Mapping[str, Any] | None, assets: Sequence[str]) -> ModelGraph:
        """Traces a model, and writes its SavedModel. Its assets in place of tables are empty files.

        Args:
          model: The Keras model.
          folder: The folder, which exists.
          signatures: Functions by name; None: what `model.export` makes.
          assets: The names of the tables' folders.
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
        return cls(model, written[0], folder, assets)

    def values(self) -> Values:
        """Returns copies of the present dense weights, by their keys."""
        return {key: np.array(_keras.tf_variable(variable).numpy()) for key, variable in self._variables.items()}

    def write_again(self, folder: Path, values: Values) -> None:
        """Writes the SavedModel with other dense weights. Any thread may call it.

        Args:
          folder: The folder, which exists.
          values: The weights, from `values`.
        """
        for name, content in self._files.items():
            (folder / name).write_bytes(content)
        (folder / ASSETS).mkdir(exist_ok=True)
        for name, content in self._assets.items():
            (folder / ASSETS / name).write_bytes(content)
        prefix = folder / _VARIABLES
        prefix.parent.mkdir()
        tensors = {**self._others, **values}
        with tf.device("CPU"):
            tf.raw_ops.SaveV2(
                prefix=os.fspath(prefix),
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=[tf.constant(value) for value in tensors.values()],
            )

    def manifest(self, step: int, tables: Sequence[TableEntry]) -> VersionManifest:
        """Returns the manifest of a version with this graph."""
        return VersionManifest(
            id=secrets.token_hex(16),
            step=step,
            tables=tuple(tables),
            graph=hashlib.blake2b(self._files[_GRAPH], digest_size=16).hexdigest(),
            variables=self._names,
            versions={
                "tf_sparse_ps": __version__,
                "tensorflow": tf.__version__,
                "keras": str(getattr(_keras.keras, "__version__", "2")),
                "python": ".".join(map(str, sys.version_info[:3])),
            },
        )
