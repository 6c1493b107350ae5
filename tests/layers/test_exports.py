"""A SavedModel contains each table once, as an asset without slots. The op library alone is enough to serve it."""

from __future__ import annotations

import glob
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from layer_support import FOLDER, IDS, TARGETS, compiled, keras, run_child

import tf_sparse_ps as tsps
from tf_sparse_ps.layers import rows

UNSEEN = np.array([[4, 5, 6], [7, 8, 9]], np.int64)  # below 10, the limit of the bounded layer
LIBRARY = os.fspath(Path(tsps.__file__).with_name("_ops_lib.so"))
BOTH = pytest.mark.parametrize("how", ["export", "saved_model"])


def trained(input_dim: int | None) -> keras.Model:
    model = compiled(tsps.Embedding(input_dim, 4, name="words"))
    model.fit(IDS, TARGETS, verbose=0, epochs=2)
    return model


def write(model: keras.Model, folder: Path, how: str) -> None:
    model.export(os.fspath(folder)) if how == "export" else tf.saved_model.save(model, os.fspath(folder))


def left_of(folder: Path) -> list[str]:
    """Returns the names in a folder that also served for temporary files, without AutoGraph's files."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("__autograph_generated_file")]


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


SERVE = """
import gc, logging, numpy as np, os, tensorflow as tf, warnings
said = []
class Listen(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
for name in ("tensorflow", "absl"):
    logging.getLogger(name).addHandler(Listen(logging.WARNING))
warnings.simplefilter("error")
tf.load_op_library({library!r})
model = tf.saved_model.load({path!r})
call = model.signatures["serving_default"]
(output,) = call(tf.constant(np.load({ids!r}))).values()
np.save({out!r}, output)
try:
    call(tf.constant([[10, 0, 0]], tf.int64))
except tf.errors.InvalidArgumentError as error:
    assert "10" in str(error), error
else:
    assert {unbounded}, "an id out of range was served"
assert not [name for name in os.listdir("/dev/shm") if name.startswith("tf_sparse_ps-files")]
del call, model
gc.collect()
assert not said, said
"""


@BOTH
@pytest.mark.parametrize("input_dim", [pytest.param(10, marks=pytest.mark.nightly), None], ids=["bounded", "unbounded"])
@pytest.mark.daily_cases(1)
def test_a_saved_model_is_served_elsewhere(tmp_path, input_dim, how):
    model = trained(input_dim)
    ids = np.concatenate([IDS, UNSEEN])
    want = model.predict(ids, verbose=0)
    folder = tmp_path / "model"
    write(model, folder, how)
    content = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
    assert FOLDER.encode() not in content
    assert b"/dev/shm" not in content
    moved = Path(shutil.move(folder, tmp_path / "elsewhere"))
    assert len(list((moved / "assets").iterdir())) == 1
    np.save(tmp_path / "ids.npy", ids)
    code = SERVE.format(
        library=LIBRARY,
        path=os.fspath(moved),
        ids=os.fspath(tmp_path / "ids.npy"),
        out=os.fspath(tmp_path / "out.npy"),
        unbounded=input_dim is None,
    )
    run_child(code, TFSPS_DIR="")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), want, rtol=1e-6)
    before = model.predict(ids, verbose=0)
    np.testing.assert_array_equal(before, want)  # the live model still reads the live table
    model.fit(IDS, TARGETS, verbose=0)
    assert np.abs(model.predict(ids, verbose=0) - want).max() > 0


@contextmanager
def no_word_said() -> Iterator[None]:
    """Asserts that Python, TensorFlow and Keras warn of nothing."""
    messages: list[str] = []

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    listen, loggers = Listen(logging.WARNING), [logging.getLogger(name) for name in ("tensorflow", "absl")]
    for logger in loggers:
        logger.addHandler(listen)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(listen)
    assert not messages, messages


@BOTH
def test_a_saved_model_holds_each_table_once_and_no_slots(tmp_path, monkeypatch, how):
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    ids = np.arange(60_000, dtype=np.int64).reshape(-1, 3)
    features = {
        "a": tsps.FeatureConfig(tsps.TableConfig("a", 16)),
        "b": tsps.FeatureConfig(tsps.TableConfig("b", 32), combiner="sum"),
    }
    inputs = keras.Input((3,), dtype="int64")
    vectors = tsps.EmbeddingCollection(features, name="both")({"a": inputs, "b": inputs})
    joined = keras.layers.Concatenate()([keras.layers.Flatten()(vectors["a"]), vectors["b"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    model.fit(ids, np.ones((len(ids), 1)), batch_size=10_000, verbose=0)
    # The tables exceed the limit of a checkpoint, which does not apply to a SavedModel.
    monkeypatch.setattr(rows, "_MAX_CHECKPOINT_BYTES", 1000)
    folder = tmp_path / "model"
    with no_word_said():
        write(model, folder, how)
    table_bytes = ids.size * (2 * 8 + (16 + 32) * 4)  # keys and rows
    assert sorted(path.name.split("-")[1] for path in (folder / "assets").iterdir()) == ["a.tfsps", "b.tfsps"]
    assert table_bytes < size(folder / "assets") < 1.05 * table_bytes
    assert size(folder) - size(folder / "assets") < 300_000
    assert left_of(tmp_path) == ["model"]
    loaded = tf.saved_model.load(os.fspath(folder))
    (output,) = loaded.signatures["serving_default"](tf.constant(ids[:100])).values()
    np.testing.assert_allclose(output, model.predict(ids[:100], verbose=0), rtol=1e-5)


def test_a_save_that_fails_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    model = trained(None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "assets").touch()  # a file in the place of TensorFlow's folder
    with pytest.raises(tf.errors.OpError) as failure:
        write(model, tmp_path / "model", "saved_model")
    assert left_of(tmp_path) == ["model"]
    (tmp_path / "model" / "assets").unlink()
    write(model, tmp_path / "model", "saved_model")  # the error of the first save is still referenced
    assert len(glob.glob(os.fspath(tmp_path / "model/assets/*"))) == 1
    assert left_of(tmp_path) == ["model"]
    del failure


EXPORT_AGAIN = """
import numpy as np, tensorflow as tf, tf_sparse_ps as tsps
keras = tf.keras
inputs = keras.Input((3,), dtype="int64")
model = keras.Model(inputs, keras.layers.Flatten()(tsps.Embedding(3000, 16)(inputs)))
ids = np.arange(3000).reshape(-1, 3)
def write():
    {write}
write()
expected = model.predict(ids, verbose=0)
first = tf.saved_model.load({path!r}).signatures["serving_default"]
def answers(call):
    (answer,) = call(tf.constant(ids)).values()
    return answer.numpy()
np.testing.assert_array_equal(answers(first), expected)
model.layers[1].set_weights([np.ones((3000, 16), np.float32)])
write()
np.testing.assert_array_equal(answers(first), expected)
np.testing.assert_array_equal(answers(tf.saved_model.load({path!r}).signatures["serving_default"]), np.ones((1000, 48)))
print("served both")
"""


@BOTH
def test_a_second_export_to_the_same_path_leaves_processes_that_serve_the_first(how: str, tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "model")
    call = f"model.export({path!r})" if how == "export" else f"tf.saved_model.save(model, {path!r})"
    assert "served both" in run_child(EXPORT_AGAIN.format(write=call, path=path))
