"""Callbacks that would fail at the end of an epoch are refused before its first batch, with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import DIM, IDS, KERAS_3, ROWS, TARGETS, fit, keras, model, optimizer

import tf_sparse_ps as tsps

CALLBACKS = keras.callbacks


def compiled(trained_model: Any) -> Any:
    trained_model.compile(tsps.DistributedOptimizer(optimizer("Adagrad", 0.05)), "mse")
    return trained_model


class Late(keras.Model):
    """A model that Keras 2 builds at its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.collection = tsps.EmbeddingCollection({"x": tsps.FeatureConfig(tsps.TableConfig("open", DIM))})
        self.flat, self.out = keras.layers.Flatten(), keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.out(self.flat(self.collection({"x": ids})["x"]))


def refused(trained_model: Any, callback: Any, words: str) -> None:
    """Asserts that `fit` refuses a callback before its first batch, whether or not the model was trained before."""
    for _ in range(2):
        iterations, begun = int(trained_model.optimizer.iterations), []
        listen = CALLBACKS.LambdaCallback(on_train_batch_begin=lambda *_, begun=begun, **__: begun.append(1))
        with pytest.raises(ValueError, match=words):
            fit(trained_model, 2, [listen, callback])
        assert (int(trained_model.optimizer.iterations), begun) == (iterations, [])
        fit(trained_model, 1)


STOP: dict[str, Any] = {"monitor": "loss", "restore_best_weights": True}


@pytest.mark.parametrize("make", [lambda: model(tsps.Embedding(None, DIM, name="open")), Late])
def test_early_stopping_that_restores_an_unbounded_table(make: Any) -> None:
    class Mine(CALLBACKS.EarlyStopping):
        def on_train_begin(self, logs: Any = None) -> None:
            raise AssertionError("it begins")

    for kind in (CALLBACKS.EarlyStopping, Mine):
        refused(compiled(make()), kind(**STOP), r"'open' is unbounded.*ModelCheckpoint\(.*monitor='loss'.*load_weights")


def test_the_remedy_for_early_stopping(tmp_path: Path) -> None:
    trained_model = compiled(model(tsps.Embedding(None, DIM)))
    path = str(tmp_path / "best.weights.h5")
    best = {"monitor": "loss", "mode": "max"}  # of the first epoch
    keep = CALLBACKS.ModelCheckpoint(path, save_weights_only=True, save_best_only=True, **best)
    predictions: list[Any] = []
    look = CALLBACKS.LambdaCallback(on_epoch_end=lambda *_: predictions.append(trained_model.predict(IDS, verbose=0)))
    fit(trained_model, 5, [look, keep, CALLBACKS.EarlyStopping(patience=2, **best)])
    assert len(predictions) == 3
    trained_model.load_weights(path)
    np.testing.assert_array_equal(trained_model.predict(IDS, verbose=0), predictions[0])


def test_a_legacy_file_of_an_unbounded_table(tmp_path: Path) -> None:
    trained_model = compiled(model(tsps.Embedding(None, DIM)))
    for name in ("model.h5", *([] if KERAS_3 else ["model.hdf5", "model.weights.h5"])):
        refused(trained_model, CALLBACKS.ModelCheckpoint(str(tmp_path / name)), r"\.keras, or with \.weights\.h5")
    if not KERAS_3:
        refused(
            trained_model, CALLBACKS.ModelCheckpoint(str(tmp_path / "w.h5"), save_weights_only=True), r"\.weights\.h5"
        )
    fit(trained_model, 1, [CALLBACKS.ModelCheckpoint(str(tmp_path / "model.keras"))])
    fit(trained_model, 1, [CALLBACKS.ModelCheckpoint(str(tmp_path / "w.weights.h5"), save_weights_only=True)])
    fit(trained_model, 1, [CALLBACKS.EarlyStopping("loss"), CALLBACKS.BackupAndRestore(str(tmp_path / "backup"))])


@pytest.mark.parametrize("rows", [ROWS, None])
def test_images_of_a_table(rows: int | None, tmp_path: Path) -> None:
    board = CALLBACKS.TensorBoard(str(tmp_path), histogram_freq=1, write_images=True)
    refused(compiled(model(tsps.Embedding(rows, DIM))), board, "write_images")


def test_models_without_tables_and_with_bounded_ones_keep_their_callbacks(tmp_path: Path) -> None:
    plain = model(keras.layers.Embedding(ROWS, DIM))
    plain.compile(optimizer("Adagrad", 0.05), "mse")
    for trained_model in (plain, compiled(model(tsps.Embedding(ROWS, DIM)))):
        save = CALLBACKS.ModelCheckpoint(str(tmp_path / "model.h5"))
        history = fit(trained_model, 2, [CALLBACKS.EarlyStopping(**STOP), save]).history["loss"]
        assert len(history) == 2
        assert trained_model.evaluate(IDS, TARGETS, verbose=0) < history[0]
