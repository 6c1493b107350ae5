"""A compiled model with `DistributedOptimizer` is saved and loaded, and continues as if it had not been."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensorflow as tf
from models import DIM, KERAS_3, ROWS, difference, fit, keras, model, optimizer, twins

import tf_sparse_ps as tsps
from tf_sparse_ps.schedules.bucket_plan import Gradient, Plan

pytestmark = pytest.mark.keras2_smoke

LEGACY = [] if KERAS_3 else ["legacy.Adam"]


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", *LEGACY])
@pytest.mark.daily_cases(1)
def test_options_and_state_survive_a_keras_file(name: str, tmp_path: Path) -> None:
    rule = tsps.optimizers.Adagrad(learning_rate=0.1)
    tsps_model, _ = twins(lambda: optimizer(name, 0.05), wrap={"sparse_reduction": "sum", "sparse_optimizer": rule})
    fit(tsps_model)
    tsps_model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is tsps.DistributedOptimizer
    assert loaded.optimizer.get_config() == tsps_model.optimizer.get_config()
    assert loaded.optimizer.sparse_optimizer == rule
    assert int(loaded.optimizer.iterations) == int(tsps_model.optimizer.iterations) == 18
    saved = [np.asarray(variable) for variable in tsps_model.optimizer.variables]
    for before, after in zip(saved, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(before, np.asarray(after))
    dense = slice(1, None)  # the table contains its slots
    fit(tsps_model, 1), fit(loaded, 1)
    for before, after in zip(tsps_model.get_weights()[dense], loaded.get_weights()[dense], strict=True):
        assert np.abs(before - after).max() < 1e-3


def test_schedules_survive_a_keras_file(tmp_path: Path) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
    tsps_model, keras_model = twins(lambda: optimizer("SGD", schedule))
    fit(tsps_model), fit(keras_model)
    tsps_model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    fit(loaded, 2), fit(keras_model, 2)
    assert difference(loaded, keras_model) < 1e-5


def test_a_keras_file_has_the_optimizer_once(tmp_path: Path) -> None:
    tsps_model = keras.Sequential([keras.Input([40]), keras.layers.Dense(40)])
    tsps_model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    tsps_model.fit(np.ones((4, 40)), np.ones((4, 40)), verbose=0)
    tsps_model.save(tmp_path / "model.keras")
    names: list[str] = []
    with (
        zipfile.ZipFile(tmp_path / "model.keras") as files,
        h5py.File(io.BytesIO(files.read("model.weights.h5"))) as file,
    ):
        file.visititems(lambda name, item: names.append(name) if getattr(item, "shape", ()) == (40, 40) else None)
    assert len([name for name in names if "optimizer" in name]) == 2, names  # the two moments of the kernel
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for before, after in zip(tsps_model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(before), np.asarray(after))


def test_an_optimizer_of_another_job_is_loaded() -> None:
    plan = Plan((Gradient("w", (2,), "float32"),), world_size=8, buckets=((0,),)).to_dict()
    original = tsps.DistributedOptimizer(optimizer("SGD", 0.1), schedule=tsps.schedules.TimedBuckets(profile_steps=3))
    config = original.get_config()
    config["collectives"] = "tensorflow"
    config["schedule"]["config"]["plan"] = plan
    with pytest.warns(UserWarning, match="which this process cannot have") as warned:
        loaded = tsps.DistributedOptimizer.from_config(config)
    messages = " ".join(str(warning.message) for warning in warned)
    assert "collectives='tensorflow'" in messages
    assert "another number of ranks" in messages
    assert loaded.collectives == "auto"
    assert loaded.schedule == tsps.schedules.TimedBuckets(profile_steps=3)
    weight = tf.Variable([1.0, 2.0])
    loaded.apply_gradients([(tf.constant([1.0, 1.0]), weight)])
    np.testing.assert_allclose(weight, [0.9, 1.9], rtol=1e-6)


def test_clone_from_config() -> None:
    options = {"sparse_reduction": "average", "broadcast": False, "name": "mine"}
    original = tsps.DistributedOptimizer(optimizer("Adam", 0.05), **options)
    copied = tsps.DistributedOptimizer.from_config(original.get_config())
    assert copied.get_config() == original.get_config()
    assert (copied.name, copied.broadcast) == ("mine", False)
    assert copied.inner_optimizer is not original.inner_optimizer


def test_checkpoints_hold_the_wrapped_optimizer(tmp_path: Path) -> None:
    original = tsps.DistributedOptimizer(optimizer("Adam", 0.05))
    weight = tf.Variable([1.0, 2.0])
    for _ in range(3):
        original.apply_gradients([(tf.constant([0.1, 0.2]), weight)])
    path = tf.train.Checkpoint(optimizer=original, weight=weight).save(str(tmp_path / "c"))
    restored, restored_weight = tsps.DistributedOptimizer(optimizer("Adam", 0.05)), tf.Variable([0.0, 0.0])
    restored.build([restored_weight])
    tf.train.Checkpoint(optimizer=restored, weight=restored_weight).restore(path).expect_partial()
    assert int(restored.iterations) == 3
    for step in range(2):
        original.apply_gradients([(tf.constant([0.1 * step, 0.2]), weight)])
        restored.apply_gradients([(tf.constant([0.1 * step, 0.2]), restored_weight)])
    np.testing.assert_array_equal(weight.numpy(), restored_weight.numpy())


def test_callbacks_of_one_rank_change_nothing() -> None:
    tsps_model, keras_model = twins(lambda: optimizer("Adagrad", 0.05))
    callbacks: list[Any] = [tsps.callbacks.BroadcastVariables(), tsps.callbacks.MetricAverage()]
    history = fit(tsps_model, 3, callbacks).history["loss"]
    np.testing.assert_allclose(history, fit(keras_model).history["loss"], rtol=1e-4)
    assert difference(tsps_model, keras_model) < 2e-5


def test_a_model_built_by_its_first_batch() -> None:
    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = tsps.Embedding(ROWS, DIM), keras.layers.Dense(1)

        def call(self, ids: Any) -> Any:
            return self.out(tf.reshape(self.table(ids), [-1, 3 * DIM]))

    late = Late()
    late.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.05)), "mse")
    losses = fit(late, 5, [tsps.callbacks.BroadcastVariables()]).history["loss"]
    assert losses[-1] < losses[0]


def test_evaluation_needs_no_binding() -> None:
    tsps_model = model(tsps.Embedding(ROWS, DIM))
    tsps_model.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.05)), "mse")
    tsps_model.evaluate(np.zeros([4, 3], np.int64), np.zeros([4, 1]), verbose=0)
    assert tsps_model.layers[1].bindings[0].optimizer is None
