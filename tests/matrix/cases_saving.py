"""Rows of "The layers beside Keras's" about files, in a job of two ranks: a path for each rank, or rank 0 alone."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from registry import refused, works
from twins import (
    DIM,
    IDS,
    KERAS_3,
    ROWS,
    assert_trains_alike,
    fit,
    keras,
    model,
    optimizer,
    pair,
    wrapped,
)

import tf_sparse_ps as tsps

CALLBACKS = "ModelCheckpoint to `.keras` and `.weights.h5`, BackupAndRestore"
EARLY = "EarlyStopping(`restore_best_weights`)"
CHECKPOINT = '`tf.train.Checkpoint`, Keras 2 `save_weights(save_format="tf")`'


def _trained(rank: Any, input_dim: int | None = ROWS) -> Any:
    ours = model(tsps.Embedding(input_dim, DIM, name="words"))
    ours.compile(wrapped(optimizer("Adagrad", 0.05)), "mse")
    fit(ours, rank.rank, epochs=1)
    return ours


def _table(saved_model: Any) -> list[Any]:
    """Returns keys, rows and slots."""
    reader = saved_model.get_layer("words").bindings[0].reader()
    return [np.asarray(part).tolist() for part in reader.entries(np.sort(reader.keys()))]


def _own_path(rank: Any, name: str) -> Path:
    """Returns a path of this rank."""
    return rank.folder / f"{rank.rank}-{name}"


def _of_rank_0(rank: Any, name: str, save: Any) -> Path:
    """Saves on rank 0 alone; returns the path to both ranks."""
    path = rank.folder / name
    if rank.rank == 0:
        save(path)
    rank.ranks.barrier("matrix.saved")
    return path


@works("layers", "`.keras` files, ModelCheckpoint")
def keras_files(rank: Any) -> None:
    for input_dim in (ROWS, None):
        ours = _trained(rank, input_dim)
        expected, unseen = _table(ours), ours.predict(IDS[0], verbose=0)
        path = _of_rank_0(rank, f"model-{input_dim}.keras", ours.save)
        again = keras.models.load_model(path)
        assert _table(again) == expected
        np.testing.assert_array_equal(again.predict(IDS[0], verbose=0), unseen)
        # Both models train on in the same way.
        fit(ours, rank.rank, epochs=1), fit(again, rank.rank, epochs=1)
        assert _table(again) == _table(ours)
        rank.same(_table(again))


@works("layers", "`save_weights`, `load_weights` (`.weights.h5`)")
def weights_files(rank: Any) -> None:
    for input_dim in (ROWS, None):
        ours = _trained(rank, input_dim)
        path = _own_path(rank, f"model-{input_dim}.weights.h5")
        ours.save_weights(path)
        again = model(tsps.Embedding(input_dim, DIM, name="words"))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            again.load_weights(path)
        assert any("never trained" in str(warning.message) for warning in warned) == (input_dim is None)
        assert _table(again)[:2] == _table(ours)[:2]
        np.testing.assert_array_equal(again.predict(IDS[1], verbose=0), ours.predict(IDS[1], verbose=0))


@works("layers", "files whose layer was `keras.layers.Embedding`")
def files_of_keras_layers(rank: Any) -> None:
    ours, reference = pair(keras.layers.Embedding)
    ours.set_weights([np.zeros_like(weight) for weight in ours.get_weights()])
    path = _own_path(rank, "theirs.weights.h5")
    reference.save_weights(path)
    named = model(keras.layers.Embedding(ROWS, DIM, name="words"))
    for file in (path, _own_path(rank, "theirs.keras")):
        if file.suffix == ".keras":
            named.set_weights(reference.get_weights())
            named.save(file)
        again = model(tsps.Embedding(ROWS, DIM, name="words" if file.suffix == ".keras" else reference.layers[1].name))
        again.load_weights(file)
        np.testing.assert_allclose(again.predict(IDS[0], verbose=0), reference.predict(IDS[0], verbose=0), rtol=1e-5)
    clone = keras.models.clone_model(
        reference,
        clone_function=lambda layer: (
            tsps.Embedding if isinstance(layer, keras.layers.Embedding) else type(layer)
        ).from_config(layer.get_config()),
    )
    clone.set_weights(reference.get_weights())
    assert_trains_alike(rank, clone, reference, lambda: optimizer("SGD", 0.05))


@works("layers", "legacy `.h5`")
def legacy_files(rank: Any) -> None:
    ours = _trained(rank)
    path = os.fspath(_own_path(rank, "model.h5"))
    ours.save(path)
    again = model(tsps.Embedding(ROWS, DIM, name="words"))
    again.load_weights(path)
    np.testing.assert_array_equal(again.predict(IDS[1], verbose=0), ours.predict(IDS[1], verbose=0))


@refused("layers", "legacy `.h5`", r"words.*unbounded.*model\.save")
def legacy_file_of_an_unbounded_table(rank: Any) -> None:
    _trained(rank, None).save(os.fspath(_own_path(rank, "model.h5")))


@works("layers", CHECKPOINT)
def checkpoints(rank: Any) -> None:
    for input_dim in (ROWS, None):
        ours = _trained(rank, input_dim)
        expected = _table(ours)
        path = tf.train.Checkpoint(model=ours).save(os.fspath(_own_path(rank, f"checkpoint-{input_dim}")))
        rank.ranks.barrier("matrix.saved")
        fit(ours, rank.rank, epochs=1)
        assert _table(ours) != expected
        rank.ranks.barrier("matrix.trained")
        tf.train.Checkpoint(model=ours).restore(path)
        assert _table(ours) == expected


@works("layers", CHECKPOINT, keras=2)
def tensorflow_format_of_keras_2(rank: Any) -> None:
    ours = _trained(rank, None)
    expected, path = _table(ours), os.fspath(_own_path(rank, "weights"))
    ours.save_weights(path, save_format="tf")
    rank.ranks.barrier("matrix.saved")
    fit(ours, rank.rank, epochs=1)
    rank.ranks.barrier("matrix.trained")
    ours.load_weights(path).expect_partial()
    assert _table(ours) == expected


@works("layers", EARLY)
def early_stopping(rank: Any) -> None:
    ours = _trained(rank)
    kept: list[Any] = []

    def keep(epoch: int, _: Any) -> None:
        kept.append(_table(ours)[1])
        rank.ranks.barrier("matrix.looked")  # before the other rank's callback restores the rows

    keeps = keras.callbacks.LambdaCallback(on_epoch_end=keep)
    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
    fit(ours, rank.rank, epochs=5, callbacks=[tsps.callbacks.MetricAverage(), keeps, stop])
    assert len(kept) == 3
    assert kept[0] != kept[-1]
    np.testing.assert_array_equal(ours.get_layer("words").get_weights()[0], np.asarray(kept[0], np.float32))


@refused("layers", EARLY, "restore_best_weights.*ModelCheckpoint")
def early_stopping_of_an_unbounded_table(rank: Any) -> None:
    ours = _trained(rank, None)
    fit(ours, rank.rank, epochs=2, callbacks=[keras.callbacks.EarlyStopping("loss", restore_best_weights=True)])


@works("layers", CALLBACKS)
def callbacks_that_save(rank: Any) -> None:
    for input_dim in (ROWS, None):
        ours = _trained(rank, input_dim)
        files = [_own_path(rank, f"{input_dim}.keras"), _own_path(rank, f"{input_dim}.weights.h5")]
        saves = [
            keras.callbacks.ModelCheckpoint(os.fspath(file), save_weights_only=file.suffix == ".h5") for file in files
        ]
        backup = keras.callbacks.BackupAndRestore(os.fspath(_own_path(rank, f"backup-{input_dim}")))
        fit(ours, rank.rank, epochs=2, callbacks=[*saves, backup])
        again = keras.models.load_model(files[0])
        assert _table(again) == _table(ours)
        loaded_model = model(tsps.Embedding(input_dim, DIM, name="words"))
        loaded_model.load_weights(files[1])
        assert _table(loaded_model)[:2] == _table(ours)[:2]


@works("layers", "TensorBoard")
def tensorboard(rank: Any) -> None:
    ours = _trained(rank)
    folder = _own_path(rank, "logs")
    fit(ours, rank.rank, epochs=1, callbacks=[keras.callbacks.TensorBoard(os.fspath(folder), histogram_freq=1)])
    assert list(folder.rglob("events*"))
    images = keras.callbacks.TensorBoard(os.fspath(folder), histogram_freq=1, write_images=True)
    with pytest.raises(ValueError, match="write_images"):
        fit(ours, rank.rank, epochs=1, callbacks=[images])


@works("layers", "`model.export`, `tf.saved_model.save`")
def exports(rank: Any) -> None:
    ours = _trained(rank)
    expected = ours.predict(IDS[0], verbose=0)
    if hasattr(ours, "export"):
        folder = _own_path(rank, "exported")
        ours.export(os.fspath(folder), **({"verbose": False} if KERAS_3 else {}))
        loaded = tf.saved_model.load(os.fspath(folder))  # its functions do not keep the model alive
        np.testing.assert_allclose(loaded.serve(tf.constant(IDS[0])), expected, rtol=1e-5)
    module = tf.Module()
    module.model = ours
    module.serve = tf.function(lambda ids: ours(ids), input_signature=[tf.TensorSpec([None, 3], tf.int64)])
    folder = _of_rank_0(rank, "saved", lambda path: tf.saved_model.save(module, os.fspath(path)))
    loaded = tf.saved_model.load(os.fspath(folder))
    np.testing.assert_allclose(loaded.serve(tf.constant(IDS[0])), expected, rtol=1e-5)


@works("layers", "`tsps.export`, `callbacks.Export`, `tsps.serving.load`")
def served_versions(rank: Any) -> None:
    for input_dim in (ROWS, None):
        ours = _trained(rank, input_dim)
        folder = rank.folder / f"serve-{input_dim}"
        fit(ours, rank.rank, epochs=1, callbacks=[tsps.callbacks.Export(folder, every_steps=2)])
        rank.ranks.barrier("matrix.published")
        served = tsps.serving.load(folder)
        np.testing.assert_allclose(np.asarray(served(IDS[0])), ours.predict(IDS[0], verbose=0), rtol=1e-5)
        again = _of_rank_0(rank, f"again-{input_dim}", lambda path, ours=ours: tsps.export(ours, path))
        reader = ours.get_layer("words").bindings[0].reader()
        keys = reader.keys()
        for path in (served.path, again):
            np.testing.assert_array_equal(tsps.ServingTable.open(path).lookup(keys), reader.lookup(keys))


@works("layers", 'Keras 2 `model.save("folder")` (SavedModel)', keras=2)
def saved_models_of_keras_2(rank: Any) -> None:
    ours = _trained(rank)
    expected, folder = ours.predict(IDS[0], verbose=0), os.fspath(_own_path(rank, "folder"))
    ours.save(folder)
    again = keras.models.load_model(folder, compile=False)
    np.testing.assert_allclose(again.predict(IDS[0], verbose=0), expected, rtol=1e-5)
