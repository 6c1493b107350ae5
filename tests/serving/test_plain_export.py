"""`tsps.export(custom_ops=False)`: any TensorFlow loads the model, and trained keys give the same answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_model import keras, make_model, train

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.layers import plain_rows

LOAD = """
import sys, numpy as np, tensorflow as tf
assert "tf_sparse_ps" not in sys.modules
call = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
(answers,) = call(tf.constant(np.load(sys.argv[2]))).values()
np.save(sys.argv[3], answers)
"""


def answers_elsewhere(version: Path, ids: np.ndarray, scratch: Path) -> np.ndarray:
    """Returns the answers of a process that never sees this library."""
    np.save(scratch / "ids.npy", ids)
    arguments = [version, scratch / "ids.npy", scratch / "answers.npy"]
    command = [sys.executable, "-c", LOAD, *map(os.fspath, arguments)]
    subprocess.run(command, check=True, timeout=120, cwd=scratch, capture_output=True)
    answers: np.ndarray = np.load(scratch / "answers.npy")
    return answers


def test_any_tensorflow_loads_it(tmp_path: Path) -> None:
    model, layer = make_model()
    train(model, np.arange(1000) * 10**10 - 5 * 10**12)  # keys beyond 32 bits
    assert tsps.export(model, tmp_path / "plain", custom_ops=False) == os.fspath(tmp_path / "plain")
    ids = (np.arange(1000) * 10**10 - 5 * 10**12).reshape(-1, 2)
    np.testing.assert_array_equal(answers_elsewhere(tmp_path / "plain", ids, tmp_path), model(ids))
    absent = np.array([[7, -7]])
    expected = np.asarray(model.layers[-1](np.zeros((1, 16), np.float32)))
    np.testing.assert_array_equal(answers_elsewhere(tmp_path / "plain", absent, tmp_path), expected)
    content = b"".join(path.read_bytes() for path in (tmp_path / "plain").rglob("*") if path.is_file())
    assert b"Tsps" not in content
    assert not list((tmp_path / "plain/assets").glob("*"))
    # The model itself still looks up its table, and exports as before.
    train(model, np.arange(4))
    tsps.export(model, tmp_path / "1")
    assert tsps.ServingTable.open(tmp_path / "1").contains([3])[0]
    assert layer.bindings[0].reader().step


def test_bags_and_bounded_tables(tmp_path: Path) -> None:
    inputs = keras.Input([3], dtype="int64")
    parts: list[Any] = [tsps.EmbeddingReduce(None, 4, combiner=combiner)(inputs) for combiner in ("sum", "mean")]
    parts.append(keras.layers.Flatten()(tsps.Embedding(50, 4, name="bounded")(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    ids = np.arange(48).reshape(-1, 3)
    model.train_on_batch(ids, np.ones((16, 1), np.float32))
    tsps.export(model, tmp_path / "1", custom_ops=False)
    # Sums of bags are in another order.
    np.testing.assert_allclose(answers_elsewhere(tmp_path / "1", ids, tmp_path), model(ids), rtol=1e-6, atol=1e-7)


def test_an_empty_table(tmp_path: Path) -> None:
    model, _ = make_model()
    tsps.export(model, tmp_path / "1", custom_ops=False)
    ids = np.array([[0, 1]])
    expected = np.asarray(model.layers[-1](np.zeros((1, 16), np.float32)))
    np.testing.assert_array_equal(answers_elsewhere(tmp_path / "1", ids, tmp_path), expected)


def test_what_does_not_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = make_model()
    train(model, np.arange(100))
    for name, value in {"rows": "int8", "base": tmp_path, "diff": True, "absent": "zeros", "signatures": {}}.items():
        with pytest.raises(UnsupportedError, match=f"with custom_ops=False, `{name}` must be left out"):
            tsps.export(model, tmp_path / "1", custom_ops=False, **{name: value})
    monkeypatch.setattr(plain_rows, "MOST_BYTES", 1000)
    with pytest.raises(UnsupportedError, match=r"table 'words' has 100 rows, which take 0.0 GB, and a SavedModel"):
        tsps.export(model, tmp_path / "1", custom_ops=False)
    assert not os.listdir(tmp_path)
