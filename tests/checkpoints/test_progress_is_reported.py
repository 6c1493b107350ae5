"""Long operations report progress, so that ranks that wait for this one continue to wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.node import activity

keras = _keras.keras
IDS, TARGETS = np.arange(80).reshape(40, 2) % 20, np.ones((40, 1), np.float32)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The activity of this process at each report of progress."""
    activities: list[str] = []
    monkeypatch.setattr(activity, "_BEAT_NS", -1)
    monkeypatch.setattr(activity, "_listeners", [lambda: activities.append(activity.current())])
    return activities


def batches(_: int = 0) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(2)


def compiled() -> Any:
    model = keras.Sequential(
        [keras.Input([2], dtype="int64"), tsps.Embedding(None, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def test_evaluation_and_prediction_report_each_batch(reports: list[str]) -> None:
    model = compiled()
    for go_through in (model.evaluate, model.predict):
        del reports[:]
        go_through(batches(), verbose=0)
        assert len(reports) >= 20


def test_a_restore_reports_what_it_restores(reports: list[str], tmp_path: Path) -> None:
    model = compiled()
    model.fit(batches(), verbose=0)
    checkpointer = tsps.Checkpointer(tmp_path, model, model.optimizer)
    del reports[:]
    checkpointer.save()
    checkpointer.wait()
    assert f"saving a checkpoint to {tmp_path}" in reports
    restored_model = compiled()
    del reports[:]
    assert tsps.Checkpointer(tmp_path, restored_model, restored_model.optimizer).restore()
    assert f"restoring a checkpoint of {tmp_path}" in reports
    assert any(report.startswith("restore ") for report in reports), "restoring rows reports progress"


def test_the_batches_that_a_restart_skips_are_reported(reports: list[str], tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 17:
                raise StopError

    model, checkpoint = compiled(), tsps.callbacks.Checkpoint(tmp_path, every_steps=17)
    with pytest.raises(StopError):
        model.fit(checkpoint.dataset(batches), callbacks=[checkpoint, Stop()], verbose=0)
    checkpoint._checkpointer.wait()
    read: list[int] = []

    def counted(_: int) -> tf.data.Dataset:
        def generate() -> Iterator[Any]:
            for i in range(20):
                read.append(len(reports))  # the number of reports so far
                yield IDS[2 * i : 2 * i + 2], TARGETS[2 * i : 2 * i + 2]

        types = (tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None, 1], tf.float32))
        return tf.data.Dataset.from_generator(generate, output_signature=types)

    resumed_model, checkpoint = compiled(), tsps.callbacks.Checkpoint(tmp_path, every_steps=17)
    resumed_model.fit(checkpoint.dataset(counted), callbacks=[checkpoint], verbose=0)
    assert int(resumed_model.optimizer.iterations) == 20
    last_pass = read[-20:]  # the pass that trains; it skips 17 batches
    assert last_pass[16] - last_pass[0] >= 2, "no progress was reported while batches were skipped"


def test_an_activity_that_fails_is_over() -> None:
    activities = []

    def fail() -> None:
        with activity.doing("outer"), activity.doing("inner"):
            activities.append(activity.current())
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert [*activities, activity.current()] == ["inner", ""]
