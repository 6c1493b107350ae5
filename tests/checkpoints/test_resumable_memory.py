"""`Checkpoint.dataset` keeps two epochs at most, and nothing after `fit` has ended."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps.checkpoints.position import Position
from tf_sparse_ps.checkpoints.resumable import ResumableDataset

pytestmark = pytest.mark.keras2_smoke

keras = tf.keras
IDS = np.random.default_rng(0).integers(0, 50, (32, 3))


def make_model() -> Any:
    inputs = keras.Input((3,), dtype="int64")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(tsps.Embedding(None, 4)(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def make(_: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, np.ones((32, 1), np.float32))).batch(8)


def alive(cls: str) -> int:
    return sum(type(value).__name__ == cls for value in gc.get_objects())


def test_fits_leave_nothing_behind(tmp_path: Path) -> None:
    model = make_model()
    checkpoint = tsps.callbacks.Checkpoint(str(tmp_path), every_steps=10**9)
    counts = []
    for epochs in range(1, 8):
        model.fit(checkpoint.dataset(make), epochs=epochs, verbose=0, callbacks=[checkpoint])
        gc.collect()
        counts.append({cls: alive(cls) for cls in ("ResumableDataset", "FuncGraph", "EagerFunc")})
    assert counts[-1] == counts[2]
    assert counts[-1]["ResumableDataset"] <= 1


def test_two_epochs_are_alive_at_most(tmp_path: Path) -> None:
    epochs: list[weakref.ref[tf.data.Dataset]] = []
    most = 0

    def counted(epoch: int) -> tf.data.Dataset:
        dataset = make(epoch)
        epochs.append(weakref.ref(dataset))
        return dataset

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            nonlocal most
            gc.collect()
            most = max(most, sum(reference() is not None for reference in epochs))

    checkpoint = tsps.callbacks.Checkpoint(str(tmp_path), every_steps=10**9)
    make_model().fit(checkpoint.dataset(counted), epochs=6, verbose=0, callbacks=[checkpoint, Count()])
    assert len(epochs) > 6
    assert most == 2


def test_two_datasets_by_turns_are_told_apart(tmp_path: Path) -> None:
    position = Position(lambda: 1)
    position.go_to(0, 1)
    dataset_1, dataset_2 = (
        ResumableDataset(lambda epoch, n=n: tf.data.Dataset.range(10 * n, 10 * n + 3), position) for n in (1, 2)
    )
    for _ in range(2):
        assert list(dataset_2.dataset.as_numpy_iterator()) == [21, 22]
        assert list(dataset_1.dataset.as_numpy_iterator()) == [11, 12]
    assert (dataset_1.passes, dataset_2.passes) == (2, 2)
