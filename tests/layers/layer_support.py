"""Layers under test, and the Keras layers to compare them with. Runs under Keras 3 and Keras 2."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Each run has a folder of its own, so that a test may check its whole content.
FOLDER = tempfile.mkdtemp(prefix="tf_sparse_ps-layers-", dir="/dev/shm")
os.environ["TFSPS_DIR"] = FOLDER

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402
from fork_server import run_forked  # noqa: E402

import tf_sparse_ps as tsps  # noqa: E402
from tf_sparse_ps._compat import _keras  # noqa: E402

keras = _keras.keras
PACKAGE_PARENT = Path(tsps.__file__).parent.parent

keras3_only = pytest.mark.skipif(not _keras.IS_KERAS_3, reason="Keras 3 only")
keras2_only = pytest.mark.skipif(_keras.IS_KERAS_3, reason="Keras 2 only")


def assign(layer: tsps.Embedding, keys: list[int], value: float, table: int = 0) -> None:
    """Sets rows of an unbounded layer to a value."""
    dim = layer.bindings[table].config.dim
    layer.bindings[table].assign(np.array(keys, np.int64), np.full((len(keys), dim), value, np.float32))


def functional(layer: object, n: int = 3, dtype: str = "int64") -> keras.Model:
    """Returns a model: ids[batch, n] -> layer -> mean -> one output."""
    inputs = keras.Input((n,), dtype=dtype)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))


def compiled(layer: object, **kwargs: object) -> keras.Model:
    model = functional(layer)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5), **kwargs), "mse")
    return model


def layer_and_model(kind: str, **policy: tsps.Admission | tsps.Eviction) -> tuple[Any, keras.Model]:
    """Returns a layer with a table policy, and the uncompiled model of it: ids[batch, 3] -> layer -> one output.

    ``kind`` says where the policy is given and to which layer.
    """
    config = tsps.TableConfig("t", 4, **policy)
    layers = {
        "argument": lambda: tsps.Embedding(None, 4, **policy),
        "table": lambda: tsps.Embedding(None, 4, table=config),
        "reduce": lambda: tsps.EmbeddingReduce(None, 4, **policy),
        "collection": lambda: tsps.EmbeddingCollection({"a": tsps.FeatureConfig(config)}),
        "pooled collection": lambda: tsps.EmbeddingCollection({"a": tsps.FeatureConfig(config, combiner="sum")}),
    }
    layer = layers[kind]()
    return layer, functional((lambda ids: layer({"a": ids})["a"]) if "collection" in kind else layer)


def table_of(layer: Any) -> tsps.Table:
    return layer.bindings[0].reader()


IDS = np.array([[1, 2, 3], [3, 0, 9]], np.int64)
TARGETS = np.array([[1.0], [-1.0]], np.float32)


def run_child(code: str, **environment: str) -> str:
    """Runs Python code in another process, where TensorFlow is imported already, and returns its standard output.

    The process must succeed.
    """
    done = run_forked(code, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


__all__ = [
    "FOLDER",
    "IDS",
    "TARGETS",
    "assign",
    "compiled",
    "functional",
    "layer_and_model",
    "run_child",
    "table_of",
    "tf",
]
