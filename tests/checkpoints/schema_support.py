"""Models that differ in tables and dense layers, for tests of restores into a changed model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import stored_checkpoint, tables, variables

keras = _keras.keras
DIM = 4
IDS = np.random.default_rng(0).integers(0, 60, (16, 2))
KEYS = np.arange(100, dtype=np.int64).reshape(-1, 2)  # trained ones and others


def make_model(
    names: Sequence[str] = ("user", "item"),
    *,
    optimizer: Any = None,
    hidden: int = 5,
    deep: bool = False,
    dims: dict[str, int] | None = None,
    limit: int | None = None,
    of_tables: dict[str, Any] | None = None,
    cache: tsps.DeviceCache | None = None,
) -> Any:
    """Returns a compiled model with one tower, and one output, per table; towers do not affect each other.

    Args:
      names: The names of the tables, and of their layers.
      optimizer: A Keras optimizer; None: Adam.
      hidden: The width of the last tower's hidden layer.
      deep: Whether the last tower has one more layer.
      dims: Widths of tables other than `DIM`.
      limit: The number of keys of each table; None: there is no limit.
      of_tables: Options of all tables.
      cache: The cache of all layers.
    """
    keras.utils.set_random_seed(3)
    inputs, outputs = keras.Input((2,), dtype="int64"), []
    for name in names:
        dim = (dims or {}).get(name, DIM)
        config = tsps.TableConfig(name, dim, key_limit=limit, **(of_tables or {}))
        rows = keras.layers.Flatten()(
            tsps.Embedding(limit, dim, table=config, cache=cache, name=f"{name}_rows")(inputs)
        )
        is_last = name == names[-1]
        rows = keras.layers.Dense(hidden if is_last else 5, activation="relu", name=f"{name}_hidden")(rows)
        if is_last and deep:
            rows = keras.layers.Dense(5, name=f"{name}_deep")(rows)
        outputs.append(keras.layers.Dense(1, name=f"{name}_top")(rows))
    model = keras.Model(inputs, outputs)
    model.compile(tsps.DistributedOptimizer(optimizer or keras.optimizers.Adam(0.05)), ["mse"] * len(outputs))
    return model


def train(model: Any, steps: int = 3, start: int = 0) -> None:
    """Makes steps on batches that depend on their numbers."""
    for step in range(start, start + steps):
        random = np.random.default_rng(step)
        x = random.integers(0, 60, (8, 2))
        y = random.normal(size=(8, 1)).astype(np.float32)
        model.train_on_batch(x, [y] * len(model.outputs))


def of_table(model: Any, name: str) -> list[Any]:
    """Returns the keys, rows, slots and metadata of a table, in the order of its keys, and the rows of `KEYS`."""
    (binding,) = [binding for binding in tables.of(model) if binding.config.name == name]
    keys, rows, slots, metadata = binding.reader().scan(slots=True).read()
    order = np.argsort(keys)
    arrays = [keys[order], rows[order], *(slot[order] for slot in slots)]
    arrays += [metadata[plane][order] for plane in sorted(metadata)]
    return [*arrays, looked_up(model, name)]


def looked_up(model: Any, name: str) -> Any:
    return tf.convert_to_tensor(model.get_layer(f"{name}_rows")(KEYS)).numpy()


def dense(model: Any) -> dict[str, Any]:
    """Returns the dense variables without metrics, by their names, without the number that Keras gives an optimizer."""
    entries = [entry for entry in variables.collect(model, model.optimizer, {}) if entry.kind not in ("metric", "seed")]
    return {re.sub(r"^([a-z]+)_\d+/", r"\1/", entry.name): entry.variable.numpy() for entry in entries}


def of_tower(values: dict[str, Any], *parts: str) -> dict[str, Any]:
    """Returns those variables, and their optimizer variables, whose names have one of these parts."""
    return {name: value for name, value in values.items() if any(part in name.replace("/", "_") for part in parts)}


def must_equal(a: Any, b: Any) -> None:
    """Fails unless lists or dicts of arrays have the same bits."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        a, b = list(a.values()), [b[name] for name in a]
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def save(path: Path, model: Any) -> str:
    """Saves a checkpoint and returns its folder."""
    checkpointer = tsps.Checkpointer(path, model, model.optimizer)
    path_saved = checkpointer.save()
    checkpointer.wait()
    return path_saved


def restore(path: Path, model: Any, **options: Any) -> Any:
    """Restores the newest checkpoint and returns its checkpointer."""
    checkpointer = tsps.Checkpointer(path, model, model.optimizer)
    assert checkpointer.restore(**options) is not None
    return checkpointer


def must_be_whole(path: Path, files: dict[str, bytes]) -> None:
    """Fails unless a directory has a whole checkpoint, of the same bytes as before."""
    assert files_of(path) == files
    for folder in path.iterdir():
        if folder.name.startswith("step-"):
            stored_checkpoint.check(folder)


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
