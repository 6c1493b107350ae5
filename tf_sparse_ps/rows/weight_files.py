"""Sources of rows in files of models: `.keras` and `.h5` files of Keras, and checkpoints of TensorFlow.

Row i of a matrix, such as the weight of a `keras.layers.Embedding`, is that of key i. The tables of this library's own
layers have keys, rows and slots (`layers/rows.py`).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, NotFoundError, UnsupportedError
from tf_sparse_ps.rows.facts import RowFacts
from tf_sparse_ps.rows.sources import Source, ends_of
from tf_sparse_ps.table.arrays import block_rows
from tf_sparse_ps.table.scan import Block

ENDINGS = (".keras", ".h5", ".hdf5")
_WEIGHTS = "model.weights.h5"  # in a .keras file
_STATE = {"keys", "rows", "meta"}
_TENSORFLOW = "/.ATTRIBUTES/VARIABLE_VALUE"
_OPTIMIZERS = ("optimizer", "OPTIMIZER_SLOT")


class Weight(NamedTuple):
    """A matrix or a table in a file.

    Attributes:
      path: The name in the file.
      names: Other names, by which it can be chosen.
      shape: The rows and floats.
      value: What the source reads: an array of the file, or a function that returns one.
    """

    path: str
    names: frozenset[str]
    shape: tuple[int, int]
    value: Any


def is_tensorflow_checkpoint(path: Path) -> bool:
    """Whether a path is the prefix of a checkpoint of TensorFlow."""
    return path.with_name(path.name + ".index").is_file()


def opened(path: Path, variable: str | None) -> Source:
    """Returns the source of a weight in a file.

    Args:
      path: A `.keras` or `.h5` file, or the prefix of a TensorFlow checkpoint.
      variable: The name of the weight or of its layer. None: the only weight of an embedding.

    Raises:
      NotFoundError, InvalidArgumentError: The file has no such weight, or several. The message lists them.
      DamagedFileError: The file cannot be read.
      UnsupportedError: A package is not installed.
    """
    if is_tensorflow_checkpoint(path):
        chosen = _chosen(path, _of_tensorflow(path), variable)
        return _Matrix(path, chosen, chosen.value())
    chosen = _chosen(path, _of_hdf5(path), variable)
    return (_Matrix if hasattr(chosen.value, "shape") else _State)(path, chosen, chosen.value)


class _Matrix(Source):
    """A matrix. Slices of it are read on demand."""

    def __init__(self, path: Path, weight: Weight, values: Any) -> None:
        self._values = values
        self.name, self.at_most = f"weight {weight.path!r} of {path}", weight.shape[0]
        self.facts = RowFacts(path.name.split(".")[0], weight.shape[1], key_limit=weight.shape[0])
        self.identity = f"{weight.path} {weight.shape}, {_identity(path)}"

    def blocks(self, slots: bool) -> Iterator[Block]:
        size = block_rows(self.facts.dim)
        for start in range(0, self.at_most, size):
            rows = np.ascontiguousarray(self._values[start : start + size], np.float32)
            yield Block(np.arange(start, start + len(rows), dtype=np.int64), rows, (), {})


class _State(Source):
    """A table that a layer of this library has saved."""

    def __init__(self, path: Path, weight: Weight, group: Mapping[str, Any]) -> None:
        self._group = group
        self.name, self.at_most = f"table {weight.path!r} of {path}", weight.shape[0]
        try:
            meta = json.loads(bytes(np.asarray(group["meta"])))
            self.facts = RowFacts(
                table=path.name.split(".")[0],
                dim=int(meta["dim"]),
                key_limit=meta["key_limit"],
                optimizer=str(meta["optimizer"]),
                slot_init=tuple(map(float, meta["slot_init"])),
                initializer=dict(meta["initializer"]),
                trained_by=(int(meta.get("trained_by", (0, 0))[0]), int(meta.get("trained_by", (0, 0))[1])),
            )
            shapes = [group[f"slot_{i}"].shape for i in range(len(self.facts.widths))]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(f"{self.name} is damaged: {type(error).__name__}: {error}") from None
        wanted = [(self.at_most, width) for width in self.facts.widths]
        if weight.shape[1] != self.facts.dim or shapes != wanted or group["keys"].shape != (self.at_most,):
            raise DamagedFileError(f"{self.name} is damaged: its arrays do not fit together")
        self.identity = f"{weight.path} {weight.shape}, {_identity(path)}"

    def blocks(self, slots: bool) -> Iterator[Block]:
        size = block_rows(self.facts.dim)
        for start in range(0, self.at_most, size):
            part = slice(start, start + size)
            names = ["rows", *(f"slot_{i}" for i in range(len(self.facts.widths)) if slots)]
            rows, *values = (np.ascontiguousarray(self._group[name][part], np.float32) for name in names)
            yield Block(np.asarray(self._group["keys"][part], np.int64), rows, tuple(values), {})


def _chosen(path: Path, weights: Sequence[Weight], variable: str | None) -> Weight:
    if variable is None:
        found = [weight for weight in weights if any("embedding" in name.lower() for name in weight.names)]
        found = found or list(weights)
    else:
        found = [weight for weight in weights if weight.path == variable]
        found = found or [weight for weight in weights if variable in weight.names]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{weight.path} {list(weight.shape)}" for weight in weights) or "none"
    if not found:
        raise NotFoundError(f"{path} has no matrix or table {variable!r}. It has: {listed}")
    raise InvalidArgumentError(
        f"{path} has several matrices or tables. Name one with variable=. Received: {variable!r}. It has: {listed}"
    )


def _identity(path: Path) -> str:
    return ends_of(path.with_name(path.name + ".index") if is_tensorflow_checkpoint(path) else path)


def _is_of_optimizer(path: str) -> bool:
    return any(part.startswith(_OPTIMIZERS) for part in path.split("/")) or ".OPTIMIZER_SLOT" in path


# --- HDF5 ---


def _of_hdf5(path: Path) -> list[Weight]:
    try:
        import h5py  # comes with Keras; the store does not need it
    except ImportError as error:
        raise UnsupportedError(f"{path} needs the package h5py: {error}. Run: pip install h5py") from error
    try:
        file = h5py.File(_extracted(path) if path.suffix == ".keras" else path, "r")
    except OSError as error:
        raise DamagedFileError(f"{path} is not an HDF5 file, or is damaged: {error}") from None
    weights: list[Weight] = []

    def visit(name: str, item: Any) -> None:  # h5py visits no links to other files
        if _is_of_optimizer(name):
            return
        names = {*name.split("/"), str(item.attrs.get("name", ""))}
        if isinstance(item, h5py.Group):
            if set(item) >= _STATE and all(isinstance(part, h5py.Dataset) for part in item.values()):
                for part in item.values():
                    _refuse_outside(path, part)
                weights.append(Weight(name, frozenset({*names, "embedding"}), item["rows"].shape, dict(item)))
        elif item.ndim == 2 and item.dtype.kind == "f" and not set(item.parent) >= _STATE:
            _refuse_outside(path, item)
            names.add(str(item.parent.attrs.get("name", "")))
            weights.append(Weight(name, frozenset(names), item.shape, item))

    file.visititems(visit)
    return weights


def _refuse_outside(path: Path, dataset: Any) -> None:
    if dataset.external or dataset.is_virtual:
        raise DamagedFileError(f"{dataset.name} of {path} has its data in other files, which is not allowed")


def _extracted(path: Path) -> IO[bytes]:
    """Returns the weights of a .keras file as a temporary file, which ends with its last user."""
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            member = stack.enter_context(archive.open(_WEIGHTS))
            file = tempfile.TemporaryFile()  # noqa: SIM115
            shutil.copyfileobj(member, file, 4 << 20)
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise DamagedFileError(f"{path} is not a .keras file, or is damaged: {error}") from None
    return file


# --- TensorFlow ---


def _of_tensorflow(path: Path) -> list[Weight]:
    import tensorflow as tf  # only these files need it

    try:
        reader = tf.train.load_checkpoint(str(path))
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError) as error:
        raise DamagedFileError(f"{path} is not a checkpoint of TensorFlow, or is damaged: {error}") from None
    weights = []
    for key in sorted(shapes):
        name = key.removesuffix(_TENSORFLOW)
        if len(shapes[key]) == 2 and types[key].is_floating and not _is_of_optimizer(key):
            names = frozenset({key, *name.split("/")})
            weights.append(Weight(name, names, tuple(shapes[key]), lambda key=key: reader.get_tensor(key)))
    return weights
