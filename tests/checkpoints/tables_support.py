"""A model with tables, for tests of increments and of background saves, and functions that return its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.checkpoints import array_file, manifest, stored_checkpoint, tables, variables
from tf_sparse_ps.checkpoints.stored_rows import StoredRows

keras = _keras.keras
KEYS = 400
Content = dict[int, bytes]


def make_model(n_tables: int = 1, width: int = 3, **options: Any) -> Any:
    """Returns a compiled model: ids[batch, 2] -> tables -> one output. `options`: The options of the tables."""
    inputs = keras.Input((2,), dtype="int64")
    configs = [tsps.TableConfig(f"table{i}", width, **options) for i in range(n_tables)]
    parts = [keras.layers.Flatten()(tsps.Embedding(None, width, table=config)(inputs)) for config in configs]
    joined = parts[0] if n_tables == 1 else keras.layers.Concatenate()(parts)
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return model


def train(model: Any, random: np.random.Generator, n: int = 20, keys: int = KEYS) -> None:
    """Makes one step on keys below `keys`."""
    model.train_on_batch(random.integers(0, keys, (n, 2)), random.normal(size=(n, 1)).astype(np.float32))


def erase(model: Any, keys: np.ndarray) -> None:
    """Removes keys from all tables."""
    for binding in tables.of(model):
        with eager_ops("erasing") as ops:
            ops.erase(binding.path, binding.uuid, keys.astype(np.int64))


def _by_key(keys: np.ndarray, *planes: np.ndarray) -> Content:
    rows = np.concatenate(planes, 1)
    content = {int(key): row.tobytes() for key, row in zip(keys, rows, strict=True)}
    assert len(content) == len(keys), "a key occurs twice"
    return content


def of_tables(model: Any) -> list[Content]:
    """Returns the rows and slots of each table by key."""
    blocks = [binding.reader().scan(slots=True).read() for binding in tables.of(model)]
    return [_by_key(block.keys, block.rows, *block.slots) for block in blocks]


def of_checkpoint(path: str | Path) -> list[Content]:
    """Checks all files of a checkpoint, and returns the rows and slots of each table by key."""
    checked = stored_checkpoint.check(Path(path))
    contents = []
    for number in range(len(checked.manifest.tables)):
        blocks = list(StoredRows(checked, number).blocks())
        planes = [[block.keys, block.rows, *block.slots] for block in blocks]
        contents.append(_by_key(*(np.concatenate(arrays) for arrays in zip(*planes, strict=True))) if planes else {})
    return contents


def dense(model: Any) -> list[np.ndarray]:
    """Returns the values of the dense variables."""
    return [np.array(entry.variable.numpy()) for entry in variables.collect(model, model.optimizer, {})]


def dense_of_checkpoint(path: str | Path) -> list[np.ndarray]:
    """Returns the values of a checkpoint's dense variables."""
    content = stored_checkpoint.look(Path(path)).manifest
    _, arrays = array_file.read(Path(path) / manifest.VARIABLES)
    return [array_file.typed(array, content.variables[number]["dtype"]) for number, array in arrays]


def kinds(path: str | Path) -> list[str]:
    """Returns "all" or "changes" for each table: the rows that the checkpoint contains."""
    return [part.content for part in stored_checkpoint.look(Path(path)).manifest.all_parts]
