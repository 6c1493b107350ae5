"""`DistributedOptimizer.rank_weight` and `EqualSteps` in one process, and what they must not change."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from models import BATCH, DIM, IDS, KERAS_3, ROWS, TARGETS, difference, fit, keras, optimizer, twins

import tf_sparse_ps as tsps
from tf_sparse_ps.reduction import gradients

LEGACY = [] if KERAS_3 else ["legacy.SGD"]


def step(layer: Any, dense: list[tf.Variable], wrapped: Any, factor: Any, *, tape: bool = False) -> None:
    recorded: Any = tf.GradientTape()
    if tape:
        recorded = tsps.DistributedGradientTape(recorded, weight=wrapped.rank_weight)
    with recorded:
        loss = tf.reduce_sum(layer(tf.constant([1, 2]))) + tf.add_n([tf.reduce_sum(variable**2) for variable in dense])
        loss += tf.reduce_sum(tf.gather(dense[0], [1, 1]))
        loss *= factor
    variables = [*layer.trainable_variables, *dense]
    wrapped.apply_gradients(zip(recorded.gradient(loss, variables), variables, strict=True))


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("tape", [True, False], ids=["our-tape", "plain-tape"])
@pytest.mark.parametrize("name", ["SGD", *LEGACY])
@pytest.mark.parametrize("clip", [{}, {"clipnorm": 1.0}, {"clipvalue": 0.1}, {"global_clipnorm": 1.0}], ids=str)
def test_a_step_of_weight_0_changes_nothing_even_with_nan(
    name: str, graph: bool, tape: bool, clip: dict[str, float]
) -> None:
    layer = tsps.Embedding(ROWS, DIM)
    layer.build(None)
    dense = [tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3])), tf.Variable(1.0)]
    wrapped = tsps.DistributedOptimizer(optimizer(name, 0.1, **clip))
    run_eagerly = functools.partial(step, layer, dense, wrapped, tape=tape)
    run = tf.function(run_eagerly) if graph else run_eagerly
    job = tsps.job.current()

    def values() -> list[np.ndarray]:
        return [layer(tf.range(ROWS)).numpy(), *(variable.numpy() for variable in dense)]

    run(tf.constant(1.0))
    before, number = values(), int(job.step.numpy())
    wrapped.rank_weight.assign(0.0)
    for factor in (1.0, float("nan"), float("inf")):
        run(tf.constant(factor))
    for value, earlier in zip(values(), before, strict=True):
        np.testing.assert_array_equal(value, earlier)
    assert int(job.step.numpy()) == number + 3
    assert int(wrapped.iterations) == 4
    wrapped.rank_weight.assign(0.25)  # the weight of the only rank acts like 1
    run(tf.constant(1.0))
    assert all((value != earlier).any() for value, earlier in zip(values(), before, strict=True))


def test_big_sparse_gradients_have_the_weight_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_DENSIFY_UP_TO", 0)
    weight, wrapped = tf.Variable(tf.ones([4, 2])), tsps.DistributedOptimizer(optimizer("SGD", 1.0))
    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0], [1.0, 0.0]]), tf.constant([3, 3]), tf.constant([4, 2]))
    wrapped.rank_weight.assign(0.0)
    wrapped.apply_gradients([(slices, weight)])
    np.testing.assert_array_equal(weight.numpy(), np.ones([4, 2]))
    wrapped.rank_weight.assign(3.0)
    wrapped.apply_gradients([(slices, weight)])
    np.testing.assert_array_equal(weight.numpy(), [[1, 1], [1, 1], [1, 1], [-1, -1]])


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("of_tape", [False, True], ids=["optimizer", "tape"])
def test_a_weight_that_is_not_allowed(weight: float, of_tape: bool) -> None:
    variable, wrapped = tf.Variable([1.0, 2.0]), tsps.DistributedOptimizer(optimizer("SGD", 1.0))
    wrapped.rank_weight.assign(weight)
    recorded: Any = tf.GradientTape()
    if of_tape:
        recorded = tsps.DistributedGradientTape(recorded, weight=wrapped.rank_weight)
    with recorded:
        loss = tf.reduce_sum(variable)
    gradients = recorded.gradient(loss, [variable])
    with pytest.raises(tf.errors.InvalidArgumentError, match="finite and at least 0"):
        wrapped.apply_gradients(zip(gradients, [variable], strict=True))
    np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0])


@pytest.mark.parametrize("of_tape", [0.0, 2.0, -1.0])
def test_a_tape_with_another_weight_than_the_optimizer(of_tape: float) -> None:
    variable, wrapped = tf.Variable([1.0, 2.0]), tsps.DistributedOptimizer(optimizer("SGD", 1.0))
    with tsps.DistributedGradientTape(tf.GradientTape(), weight=of_tape) as tape:
        loss = tf.reduce_sum(variable)
    gradients = tape.gradient(loss, [variable])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"finite" if of_tape < 0 else r"weight=optimizer"):
        wrapped.apply_gradients(zip(gradients, [variable], strict=True))
    np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0])


def test_a_weight_of_a_model_of_tables_only_is_looked_at() -> None:
    layer, wrapped = tsps.Embedding(ROWS, DIM), tsps.DistributedOptimizer(optimizer("SGD", 1.0))
    layer.build(None)
    wrapped.rank_weight.assign(-1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1])))
    variables = layer.trainable_variables
    with pytest.raises(tf.errors.InvalidArgumentError, match="finite and at least 0"):
        wrapped.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def test_the_weight_is_no_part_of_state_and_configuration(tmp_path: Path) -> None:
    tsps_model, _ = twins(lambda: optimizer("Adam", 0.05))
    fit(tsps_model, 1)
    tsps_model.optimizer.rank_weight.assign(7.0)
    inner = tsps_model.optimizer.inner_optimizer.variables
    variables = tsps_model.optimizer.variables
    assert [id(variable) for variable in variables] == [
        id(variable) for variable in (inner() if callable(inner) else inner)
    ]
    assert "weight" not in tsps_model.optimizer.get_config()
    tf.train.Checkpoint(optimizer=tsps_model.optimizer).save(str(tmp_path / "c"))
    names = [name for name, _ in tf.train.list_variables(str(tmp_path))]
    assert len(names) > 3
    assert not any("rank_weight" in name for name in names), names
    tsps_model.save(tmp_path / "model.keras")
    assert float(keras.models.load_model(tmp_path / "model.keras").optimizer.rank_weight) == 1.0


def test_equal_steps_of_one_process_are_its_own() -> None:
    data = tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(BATCH)
    tsps_model, keras_model = twins(lambda: optimizer("Adagrad", 0.05))
    equal = tsps.callbacks.EqualSteps(data)
    assert equal.dataset is data
    assert equal.steps == equal.own_steps == 6
    tsps_model.fit(equal.dataset, epochs=3, verbose=0, callbacks=[equal]), fit(keras_model)
    assert difference(tsps_model, keras_model) < 2e-5


@pytest.mark.parametrize("steps_per_execution", [1, 2, 4])
def test_a_rank_without_batches_goes_on_with_weight_0(
    steps_per_execution: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(BATCH)
    tsps_model, keras_model = twins(lambda: optimizer("SGD", 0.05))
    tsps_model.compile(tsps_model.optimizer, "mse", steps_per_execution=steps_per_execution)
    with monkeypatch.context() as patch:  # another rank has 11 batches
        patch.setattr(tsps.collectives.current(), "allgather_object", lambda value, name: [value, 11], raising=False)
        equal = tsps.callbacks.EqualSteps(data)
    assert (equal.own_steps, equal.steps, int(equal.dataset.cardinality())) == (6, 11, 11)
    tsps_model.fit(equal.dataset, epochs=3, verbose=0, callbacks=[equal]), fit(keras_model)
    assert int(tsps_model.optimizer.iterations) == 33
    assert difference(tsps_model, keras_model) < 2e-5
    before = tsps_model.get_weights()
    tsps_model.fit(data, verbose=0)  # without the callback, the weight is 1 again
    assert all(
        (weight != weight_before).any() for weight, weight_before in zip(tsps_model.get_weights(), before, strict=True)
    )


def test_batches_gone_through_again_leave_moving_statistics_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = keras.layers.Input((3,), dtype="int64")
    hidden = keras.layers.BatchNormalization()(keras.layers.Flatten()(tsps.Embedding(ROWS, DIM)(ids)))
    tsps_model = keras.Model(ids, keras.layers.Dense(1)(hidden))
    tsps_model.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.05)), "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(BATCH)
    monkeypatch.setattr(
        tsps.collectives.current(),
        "allgather_object",
        lambda value, name: [value, 9 if value == 6 else value],
        raising=False,
    )
    equal = tsps.callbacks.EqualSteps(data)
    history = tsps_model.fit(equal.dataset, verbose=0, callbacks=[equal]).history
    assert np.isfinite([history["loss"], history["mae"]]).all()
    assert all(np.isfinite(weight).all() for weight in tsps_model.get_weights())
