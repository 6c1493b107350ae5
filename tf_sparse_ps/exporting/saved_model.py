"""The graph and the dense weights of a version: a SavedModel, whose tables are written separately."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps._compat import _keras, _keras_state, _tensorflow
from tf_sparse_ps.checkpoints import array_file
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.job.table_binding import TableBinding, binding_of
from tf_sparse_ps.layers import saving
from tf_sparse_ps.serving.version import ASSETS, TableEntry, Version, VersionManifest

_GRAPH, _FINGERPRINT = "saved_model.pb", "fingerprint.pb"
_VARIABLES = "variables/variables"
Values = dict[str, npt.NDArray[Any]]


class ModelGraph:
    """The graph of a model, which was traced once. Later versions have it with other dense weights."""

    def __init__(
        self,
        folder: Path,
        assets: Sequence[str],
        variables: Mapping[str, Any],
        names: Mapping[str, str],
    ) -> None:
        """Reads the files of a SavedModel. Callers use `write` or `of_version`.

        Args:
          folder: The SavedModel.
          assets: The names of its assets that stand for tables.
          variables: The live variables by their keys in the SavedModel's checkpoint; empty: there are none.
          names: The names of variables in the model, by the same keys.
        """
        self._variables, self._names = dict(variables), dict(names)
        files = [path for name in (_GRAPH, _FINGERPRINT) if (path := folder / name).exists()]
        self._files = {path.name: path.read_bytes() for path in files}
        self._assets = {path.name: path.read_bytes() for path in (folder / ASSETS).glob("*") if path.name not in assets}
        reader = tf.train.load_checkpoint(os.fspath(folder / _VARIABLES))
        # Also what does not change: vocabularies, anchors of tables, and the names of objects.
        self._tensors = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}

    @classmethod
    def of_version(cls, version: Version) -> ModelGraph:
        """Returns the graph of a version, whose variables are not those of this process."""
        assets = [entry.asset for entry in version.tables]
        return cls(version.path, assets, {}, dict(version.manifest.variables))

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
        variables = {
            key: variable
            for key, variable in _tensorflow.variables_by_key(written[0], os.fspath(folder / _VARIABLES))
            if binding_of(variable) is None
        }
        names = {
            _tensorflow.resource_of(_keras.tf_variable(variable)): _keras.variable_name(variable)
            for variable in _keras_state.all_variables(model)
            if binding_of(variable) is None
        }
        named = {
            key: names[resource]
            for key, variable in variables.items()
            if (resource := _tensorflow.resource_of(_keras.tf_variable(variable))) in names
        }
        return cls(folder, assets, variables, named)

    def values(self) -> Values:
        """Returns copies of the present dense weights, by their keys."""
        return {key: np.array(_keras.tf_variable(variable).numpy()) for key, variable in self._variables.items()}

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives variables other names in the model. Variables whose names are not in `names` lose theirs."""
        self._names = {key: names[name] for key, name in self._names.items() if name in names}

    def with_names(self, weights: Sequence[tuple[str, npt.NDArray[Any]]], where: str) -> Values:
        """Returns dense weights by their keys.

        Args:
          weights: The names and the values of stored weights.
          where: What has them, for messages.

        Raises:
          InvalidArgumentError: A variable of the graph is missing, has another shape, or shares its name with another.
        """
        values = {}
        for key, name in self._names.items():
            stored, present = [array for other, array in weights if other == name], self._tensors[key]
            if len(stored) != 1 or stored[0].shape != present.shape:
                found = [array.shape for array in stored]
                raise InvalidArgumentError(
                    f"the graph has a variable {name!r} of shape {present.shape}, and {where} has {found}. Name the "
                    "model that was saved"
                )
            values[key] = array_file.typed(stored[0], present.dtype)
        return values

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
        tensors = {**self._tensors, **values}
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
            variables=tuple(self._names.items()),
            versions=_keras.software_versions(),
        )
