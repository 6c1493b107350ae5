"""Models of the tests that sharded tables are saved and loaded, and the contents of their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps import _table
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.config.placement import Sharded

keras = tf.keras
WIDTH, IDS, ITEMS = 4, 3000, 900
TABLES = ("words", "items", "near")
# The ids of lookups: some were trained, and some were not.
ASKED = np.arange(4 * 300, dtype=np.int64).reshape(300, WIDTH) % ITEMS
# The files of a model with an unbounded table, and those of a model without one.
ANY = ["model.keras", "model.weights.h5", "checkpoint"] + ([] if _keras.IS_KERAS_3 else ["weights"])
BOUNDED = [*ANY, "model.h5"]
SERVED = ["exported", "saved", "version"] + ([] if _keras.IS_KERAS_3 else ["folder"])


def make(placement: Any, *, bounded: bool = False) -> Any:
    """Returns a model whose tables of two layers have this placement. A third table is on every node."""
    inputs = keras.Input((WIDTH,), dtype="int64")
    limit = ITEMS if bounded else None
    words = tsps.TableConfig("words", 4, key_limit=limit, placement=placement, initializer="uniform", seed=3)
    items = tsps.TableConfig("items", 6, key_limit=ITEMS, placement=placement, dtype="bfloat16", rounding="nearest")
    near = tsps.TableConfig("near", 4, key_limit=ITEMS, initializer="uniform", seed=4)
    layers = [tsps.Embedding(limit, 4, table=words, name="words"), tsps.Embedding(ITEMS, 6, table=items, name="items")]
    layers.append(tsps.Embedding(ITEMS, 4, table=near, name="near"))
    parts = [keras.layers.Flatten()(layer(inputs)) for layer in layers]
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Concatenate()(parts))
    model = keras.Model(inputs, outputs)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
    return model


def train(model: Any, rank: int, steps: int = 4) -> None:
    """Makes some steps, with batches of this rank."""
    random = np.random.default_rng(rank)
    x = random.integers(0, ITEMS, (steps * 64, WIDTH))
    y = random.normal(size=(steps * 64, 1)).astype(np.float32)
    model.fit(x, y, batch_size=64, shuffle=False, verbose=0)


def layer_of(model: Any, name: str) -> Any:
    """Returns the layer of a table."""
    return next(layer for layer in model.layers if layer.name == name)


def content(model: Any) -> dict[str, Any]:
    """Returns keys, rows and slots of each table, of all nodes, in the order of keys, read from the nodes' tables."""
    ranks = tsps.collectives.current()
    result: dict[str, Any] = {}
    for name in TABLES:
        (binding,) = layer_of(model, name).bindings
        reader = binding.reader()
        keys = np.sort(reader.keys())
        if binding.placement == "sharded":
            assert (_table.owners(keys, binding.nodes) == binding.node).all(), "a node has rows that are not its own"
        _, rows, slots = reader.entries(keys)
        own_content = (
            [keys, rows, *slots]
            if ranks.local_rank == 0 and (binding.placement == "sharded" or ranks.rank == 0)
            else None
        )
        parts = [part for part in ranks.allgather_object(own_content, f"test.{name}") if part is not None]
        whole = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        order = np.argsort(whole[0])
        for plane, array in zip(("keys", "rows", "m", "v"), whole, strict=True):
            result[f"{name}.{plane}"] = array[order]
        result[f"{name}.looked_up"] = np.asarray(layer_of(model, name)(ASKED))
    result["predictions"] = model.predict(ASKED, verbose=0)
    return result


def must_equal(actual_content: dict[str, Any], path: Path, label: str, *, unseen: bool) -> None:
    """Fails unless the tables have the contents that a file recorded.

    Args:
      found: `content` of a model.
      path: The file.
      what: A label for messages.
      unseen: Whether to compare initial values of untrained keys, too. An unbounded table does not take them from
        weights, and a bounded table has rows of them.
    """
    with np.load(path) as noted:
        assert sorted(noted.files) == sorted(actual_content), label
        seen = np.isin(ASKED, noted["words.keys"]) | unseen
        assert seen.all() == unseen, "no key was never trained"
        for name in noted.files:
            actual, expected = actual_content[name], noted[name]
            table, _, plane = name.partition(".")
            if name == "words.looked_up":
                actual, expected = actual[seen], expected[seen]
            elif plane in ("keys", "rows", "m", "v"):
                actual = actual[np.isin(actual_content[f"{table}.keys"], noted[f"{table}.keys"])]
            if name == "predictions":
                actual, expected = actual[seen.all(1)], expected[seen.all(1)]
                np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, err_msg=label)
            else:
                np.testing.assert_array_equal(actual, expected, err_msg=f"{label}: {name}")


def save(model: Any, path: Path) -> None:
    """Saves in the format that the file's name stands for."""
    if path.name in ("checkpoint",):
        tf.train.Checkpoint(model=model).write(str(path))
    elif path.name in ("model.weights.h5", "weights"):
        model.save_weights(str(path))
    elif path.name == "exported":
        model.export(str(path))
    elif path.name == "version":
        tsps.export(model, path)
    elif path.name == "saved":
        tf.saved_model.save(model, str(path))
    else:
        model.save(str(path))


def load(path: Path, placement: Any, *, bounded: bool) -> Any:
    """Returns the model of a file. The file of a whole model determines the placement of its tables."""
    if path.name == "model.keras":
        return keras.models.load_model(str(path))
    model = make(placement, bounded=bounded)
    if path.name == "checkpoint":
        tf.train.Checkpoint(model=model).restore(str(path)).expect_partial()
    else:
        status = model.load_weights(str(path))
        if status is not None:
            status.expect_partial()
    return model


SPREAD = Sharded()
