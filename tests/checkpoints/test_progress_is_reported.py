"""What takes long reports progress, so that ranks that wait for this one wait on."""

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
    """What this process was doing whenever it reported progress."""
    found: list[str] = []
    monkeypatch.setattr(activity, "_BEAT_NS", -1)
    monkeypatch.setattr(activity, "_listeners", [lambda: found.append(activity.current())])
    return found


def batches(_: int = 0) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(2)


def compiled() -> Any:
    one = keras.Sequential(
        [keras.Input([2], dtype="int64"), tsps.Embedding(None, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    one.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return one


def test_evaluation_and_prediction_report_each_batch(reports: list[str]) -> None:
    one = compiled()
    for go_through in (one.evaluate, one.predict):
        del reports[:]
        go_through(batches(), verbose=0)
        assert len(reports) >= 20


def test_a_restore_reports_what_it_restores(reports: list[str], tmp_path: Path) -> None:
    one = compiled()
    one.fit(batches(), verbose=0)
    checkpointer = tsps.Checkpointer(tmp_path, one, one.optimizer)
    del reports[:]
    checkpointer.save()
    checkpointer.wait()
    assert f"saving a checkpoint to {tmp_path}" in reports
    other = compiled()
    del reports[:]
    assert tsps.Checkpointer(tmp_path, other, other.optimizer).restore()
    assert f"restoring a checkpoint of {tmp_path}" in reports
    assert any(one.startswith("restore ") for one in reports), "rows of the table"


def test_the_batches_that_a_restart_skips_are_reported(reports: list[str], tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 17:
                raise StopError

    one, checkpoint = compiled(), tsps.callbacks.Checkpoint(tmp_path, every_steps=17)
    with pytest.raises(StopError):
        one.fit(checkpoint.dataset(batches), callbacks=[checkpoint, Stop()], verbose=0)
    checkpoint._checkpointer.wait()
    read: list[int] = []

    def counted(_: int) -> tf.data.Dataset:
        def generate() -> Iterator[Any]:
            for i in range(20):
                read.append(len(reports))  # so far
                yield IDS[2 * i : 2 * i + 2], TARGETS[2 * i : 2 * i + 2]

        types = (tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None, 1], tf.float32))
        return tf.data.Dataset.from_generator(generate, output_signature=types)

    other, checkpoint = compiled(), tsps.callbacks.Checkpoint(tmp_path, every_steps=17)
    other.fit(checkpoint.dataset(counted), callbacks=[checkpoint], verbose=0)
    assert int(other.optimizer.iterations) == 20
    whole = read[-20:]  # the pass that trains: it skips 17 batches
    assert whole[16] - whole[0] >= 2, "nothing was reported while batches were skipped"


def test_an_activity_that_fails_is_over() -> None:
    seen = []

    def fail() -> None:
        with activity.doing("outer"), activity.doing("inner"):
            seen.append(activity.current())
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert [*seen, activity.current()] == ["inner", ""]
