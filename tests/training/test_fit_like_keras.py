"""`DistributedOptimizer` gives the results of the wrapped Keras optimizer, in `fit` and in custom training loops."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from models import BATCH, DIM, IDS, KERAS_3, ROWS, TARGETS, difference, fit, keras, model, optimizer, twins

import tf_sparse_ps as tsps

pytestmark = pytest.mark.keras2_smoke

LEGACY = [] if KERAS_3 else ["legacy.SGD", "legacy.Adagrad", "legacy.Adam"]
TOLERANCE = 2e-5  # after 18 updates in float32; Adam divides by small roots


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", *LEGACY])
@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"steps_per_execution": 4}], ids=["graph", "eager", "several-steps"]
)
@pytest.mark.daily_cases(2)
def test_equal_in_fit(name: str, options: dict[str, Any]) -> None:
    tsps_model, keras_model = twins(lambda: optimizer(name, 0.05), **options)
    fit(tsps_model), fit(keras_model)
    # The legacy Adagrad adds epsilon at another place.
    assert difference(tsps_model, keras_model) < TOLERANCE
    assert int(tsps_model.optimizer.iterations) == 18


RULES = {
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.8, "nesterov": True}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {"weight_decay": 0.1}),
    "rmsprop": ("RMSprop", {"rho": 0.8}),
    "rmsprop-momentum": ("RMSprop", {"momentum": 0.5}),
    "rmsprop-centered": ("RMSprop", {"centered": True}),
    "rmsprop-centered-momentum": ("RMSprop", {"centered": True, "momentum": 0.5, "epsilon": 1e-3}),
    "ftrl": ("Ftrl", {"l1_regularization_strength": 0.001, "l2_regularization_strength": 0.01, "beta": 0.1}),
    "ftrl-shrinkage": ("Ftrl", {"l2_shrinkage_regularization_strength": 0.1, "initial_accumulator_value": 0.5}),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.daily_cases(1)
def test_other_rules_are_keras_s_for_rows_that_every_step_touches(rule: str) -> None:
    name, options = RULES[rule]
    tsps_model, keras_model = twins(lambda: optimizer(name, 0.02, **options))
    start = [weights.copy() for weights in tsps_model.get_weights()]
    fit(tsps_model), fit(keras_model)
    # The rule divides by the root of a difference of two nearly equal numbers, which amplifies rounding.
    assert difference(tsps_model, keras_model) < (2e-3 if "centered" in rule else TOLERANCE)
    assert np.abs(tsps_model.get_weights()[0] - start[0]).max() > 1e-2


def test_rowwise_adagrad_has_one_number_per_row() -> None:
    layer = tsps.Embedding(ROWS, DIM, embeddings_initializer="ones")
    rule = tsps.optimizers.RowwiseAdagrad(learning_rate=0.5, epsilon=0.25, initial_accumulator_value=0.5)
    wrapped = tsps.DistributedOptimizer(optimizer("SGD", 0.1), sparse_optimizer=rule)
    factors = tf.constant([[1.0, 2.0, -3.0], [0.5, 0.0, 0.0]])
    expected, accumulators = np.ones((2, DIM)), np.full((2, 1), 0.5)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([4, 7])) * factors)
        weights = layer.trainable_variables
        wrapped.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        accumulators += np.mean(np.square(factors.numpy()), axis=1, keepdims=True)
        expected -= 0.5 * factors.numpy() / (np.sqrt(accumulators) + 0.25)
    np.testing.assert_allclose(layer(tf.constant([4, 7])), expected, rtol=1e-6)
    np.testing.assert_array_equal(layer(tf.constant([0])), np.ones((1, DIM)))


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", *LEGACY])
@pytest.mark.daily_cases(1)
def test_schedules_drive_tables(name: str) -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3, 7], [0.0, 0.2, 0.01])
    tsps_model, keras_model = twins(lambda: optimizer(name, schedule))
    start = tsps_model.get_weights()
    fit(tsps_model), fit(keras_model)
    assert difference(tsps_model, keras_model) < TOLERANCE
    # An update at the rate of another step would be visible.
    tsps_model.set_weights(start)
    assert difference(tsps_model, keras_model) > 1e-3


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", *LEGACY])
@pytest.mark.daily_cases(1)
def test_callbacks_that_set_the_learning_rate_drive_tables(name: str) -> None:
    def callbacks() -> list[Any]:
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: [0.1, 0.1, 0.05, 0.05, 0.2][epoch]),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", min_delta=100.0, patience=1, factor=0.1),
        ]

    tsps_model, keras_model = twins(lambda: optimizer(name, 0.3))
    rates = fit(tsps_model, 5, callbacks()).history
    fit(keras_model, 5, callbacks())
    assert difference(tsps_model, keras_model) < TOLERANCE
    rate = rates.get("learning_rate", rates.get("lr"))
    assert rate is not None
    assert len(set(np.round(rate, 6))) > 1


@pytest.mark.parametrize("clip", [{"clipnorm": 0.05}, {"clipvalue": 0.01}, {"global_clipnorm": 0.05}], ids=str)
@pytest.mark.parametrize("name", ["SGD", "Adam", *LEGACY[:1]])
@pytest.mark.daily_cases(1)
def test_clipping_acts_on_tables_as_on_weights(name: str, clip: dict[str, float]) -> None:
    tsps_model, keras_model = twins(lambda: optimizer(name, 0.05, **clip))
    free, _ = twins(lambda: optimizer(name, 0.05))
    free.set_weights(tsps_model.get_weights())
    fit(tsps_model), fit(keras_model), fit(free)
    assert difference(tsps_model, keras_model) < TOLERANCE
    assert difference(tsps_model, free) > 1e-4, "the limit must bind, otherwise clipping is not tested"


@pytest.mark.skipif(not KERAS_3, reason="loss_scale_factor is Keras 3's")
@pytest.mark.parametrize("clip", [{}, {"clipnorm": 0.05}, {"global_clipnorm": 0.05}], ids=str)
@pytest.mark.daily_cases(1)
def test_a_fixed_loss_scale_is_taken_out_again(clip: dict[str, float]) -> None:
    # Keras's loss scale does not support sparse gradients, so the Keras model trains without a scale.
    tsps_model, keras_model = twins(lambda: optimizer("Adagrad", 0.05, **clip))
    tsps_model.compile(tsps.DistributedOptimizer(optimizer("Adagrad", 0.05, loss_scale_factor=1024.0, **clip)), "mse")
    fit(tsps_model), fit(keras_model)
    assert difference(tsps_model, keras_model) < TOLERANCE


def test_weight_decay_is_for_dense_weights_only() -> None:
    tsps_model = model(tsps.Embedding(ROWS, DIM))
    tsps_model.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.05, weight_decay=0.1)), "mse")
    with pytest.raises(ValueError, match="sparse_optimizer="):
        fit(tsps_model, 1)
    plain = model(tsps.Embedding(ROWS, DIM))
    plain.set_weights(tsps_model.get_weights())
    wrapped = tsps.DistributedOptimizer(optimizer("SGD", 0.05, weight_decay=0.1), sparse_optimizer="sgd")
    tsps_model.compile(wrapped, "mse")
    plain.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.05)), "mse")
    options = {"batch_size": BATCH, "verbose": 0}
    tsps_model.fit(IDS[:BATCH], TARGETS[:BATCH], **options), plain.fit(IDS[:BATCH], TARGETS[:BATCH], **options)
    assert (tsps_model.get_weights()[0] == plain.get_weights()[0]).all()
    assert (tsps_model.get_weights()[1] != plain.get_weights()[1]).any()


def test_tables_take_another_rule_and_rate_than_dense_weights() -> None:
    rule = tsps.optimizers.Adagrad(learning_rate=0.5, initial_accumulator_value=0.3)
    tsps_model, keras_model = twins(lambda: optimizer("SGD", 0.0), wrap={"sparse_optimizer": rule})
    before = keras_model.get_weights()
    keras_model.compile(optimizer("Adagrad", 0.5, initial_accumulator_value=0.3), "mse")
    options = {"batch_size": BATCH, "verbose": 0}
    tsps_model.fit(IDS[:BATCH], TARGETS[:BATCH], **options), keras_model.fit(IDS[:BATCH], TARGETS[:BATCH], **options)
    np.testing.assert_allclose(tsps_model.get_weights()[0], keras_model.get_weights()[0], rtol=1e-5)
    np.testing.assert_array_equal(tsps_model.get_weights()[1], before[1])


def test_a_rule_may_have_its_own_schedule() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.0, 0.3])
    rule = tsps.optimizers.SGD(learning_rate=schedule)
    tsps_model, _ = twins(lambda: optimizer("SGD", 0.01), wrap={"sparse_optimizer": rule})
    start = tsps_model.get_weights()[0]
    options = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    tsps_model.fit(IDS[: 3 * BATCH], TARGETS[: 3 * BATCH], **options)  # the rate of steps 0, 1, 2 is 0
    np.testing.assert_array_equal(tsps_model.get_weights()[0], start)
    tsps_model.fit(IDS[:BATCH], TARGETS[:BATCH], **options)
    assert (tsps_model.get_weights()[0] != start).any()


def test_models_of_tables_only() -> None:
    ids = keras.layers.Input((3,), dtype="int64")
    layer = tsps.Embedding(None, 1)
    tsps_model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(layer(ids)))
    tsps_model.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.1)), "mse")
    history = fit(tsps_model, 10).history["loss"]
    assert history[-1] < history[0]
    assert int(tsps_model.optimizer.iterations) == 60


def test_models_without_tables() -> None:
    def plain() -> Any:
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])

    # Without tables no rule is needed, so momentum is allowed.
    tsps_model, keras_model = plain(), plain()
    tsps_model.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.01, momentum=0.9)), "mse")
    keras_model.compile(optimizer("SGD", 0.01, momentum=0.9), "mse")
    x = IDS.astype("float32")
    tsps_model.fit(x, TARGETS, verbose=0, shuffle=False), keras_model.fit(x, TARGETS, verbose=0, shuffle=False)
    assert difference(tsps_model, keras_model) == 0


def loop(trained_model: Any, wrapped: Any, tape: Any, *, graph: bool) -> None:
    def step(ids: tf.Tensor, targets: tf.Tensor) -> None:
        with tape() as recorded:
            loss = tf.reduce_mean((trained_model(ids, training=True) - targets) ** 2)
        variables = trained_model.trainable_variables
        wrapped.apply_gradients(zip(recorded.gradient(loss, variables), variables, strict=True))

    run = tf.function(step) if graph else step
    for start in range(0, len(IDS), BATCH):
        run(tf.constant(IDS[start : start + BATCH]), tf.constant(TARGETS[start : start + BATCH]))


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("distributed", [True, False], ids=["our-tape", "plain-tape"])
def test_equal_in_a_loop_of_ones_own(graph: bool, distributed: bool) -> None:
    def distributed_tape() -> Any:
        return tsps.DistributedGradientTape(tf.GradientTape())

    tsps_model, keras_model = twins(lambda: optimizer("Adagrad", 0.05))
    tape = distributed_tape if distributed else tf.GradientTape
    loop(tsps_model, tsps_model.optimizer, tape, graph=graph)
    loop(keras_model, keras_model.optimizer, tf.GradientTape, graph=graph)
    assert difference(tsps_model, keras_model) < TOLERANCE


def test_steps_in_a_graph_loop() -> None:
    tsps_model, keras_model = twins(lambda: optimizer("Adagrad", 0.05))
    tsps_model.optimizer.build(tsps_model.trainable_variables)
    keras_model.optimizer.build(keras_model.trainable_variables)

    def run(model_to_train: Any) -> None:
        @tf.function
        def steps() -> None:
            for i in tf.range(6):
                ids = tf.constant(IDS)[i * BATCH : (i + 1) * BATCH]
                targets = tf.constant(TARGETS)[i * BATCH : (i + 1) * BATCH]
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model_to_train(ids) - targets) ** 2)
                variables = model_to_train.trainable_variables
                model_to_train.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        steps()

    run(tsps_model), run(keras_model)
    assert difference(tsps_model, keras_model) < TOLERANCE


def test_several_optimizers_in_one_model() -> None:
    tsps_model = model(tsps.Embedding(ROWS, DIM))
    keras_model = model(keras.layers.Embedding(ROWS, DIM))
    tsps_model.set_weights(keras_model.get_weights())
    step = int(tsps.job.current().step.numpy())

    def run(model_to_train: Any, wrap: Any) -> None:
        first, second = wrap(optimizer("Adagrad", 0.05)), wrap(optimizer("SGD", 0.01))

        @tf.function
        def train(ids: tf.Tensor, targets: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model_to_train(ids) - targets) ** 2)
            variables = model_to_train.trainable_variables
            gradients = tape.gradient(loss, variables)
            first.apply_gradients([(gradients[0], variables[0])])
            second.apply_gradients(list(zip(gradients, variables, strict=True))[1:])

        for start in range(0, len(IDS), BATCH):
            train(tf.constant(IDS[start : start + BATCH]), tf.constant(TARGETS[start : start + BATCH]))

    run(tsps_model, tsps.DistributedOptimizer), run(keras_model, lambda plain: plain)
    assert difference(tsps_model, keras_model) < TOLERANCE
    assert int(tsps.job.current().step.numpy()) == step + 6, "only an optimizer with tables may count steps of the job"


def test_a_layer_called_twice_counts_a_key_once() -> None:
    layer = tsps.Embedding(5, 2, embeddings_initializer="zeros")
    layer.build(None)
    wrapped = tsps.DistributedOptimizer(optimizer("SGD", 1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1, 1, 2]))) + tf.reduce_sum(3.0 * layer(tf.constant([2, 3])))
    wrapped.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables, strict=True))
    np.testing.assert_array_equal(layer(tf.range(5)).numpy()[:, 0], [0, -2, -4, -3, 0])


def test_two_layers_of_keras_and_ours_side_by_side() -> None:
    """Sparse gradients of Keras layers: small ones are made dense, large ones stay sparse and get unique keys."""
    from tf_sparse_ps.reduction import gradients

    def build(limit: int) -> np.ndarray:
        keras.utils.set_random_seed(2)
        ids = keras.layers.Input((3,), dtype="int64")
        keras_layer = keras.layers.Embedding(ROWS, DIM)
        tsps_layer = tsps.Embedding(ROWS, DIM, embeddings_initializer="ones")
        joined = keras.layers.Concatenate()([keras_layer(ids), tsps_layer(ids)])
        joined_model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(joined)))
        before, gradients._DENSIFY_UP_TO = gradients._DENSIFY_UP_TO, limit
        try:
            joined_model.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.05)), "mse")
            repeated = np.concatenate([IDS[:, :2], IDS[:, :1]], axis=1)  # each id occurs twice in a row
            joined_model.fit(repeated, TARGETS, BATCH, verbose=0, shuffle=False, epochs=2)
        finally:
            gradients._DENSIFY_UP_TO = before
        return keras_layer.get_weights()[0]

    np.testing.assert_allclose(build(10**9), build(0), rtol=1e-5)


@pytest.mark.nightly
def test_compiling_again_with_another_rule_starts_its_slots_anew() -> None:
    tsps_model, _ = twins(lambda: optimizer("Adagrad", 0.05))
    fit(tsps_model, 1)
    tsps_model.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.05)), "mse")
    with pytest.warns(UserWarning, match="slots are reset"):
        fit(tsps_model, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tsps_model.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.01)), "mse")
        fit(tsps_model, 1)


def test_an_unused_table_is_left_alone() -> None:
    used, unused = tsps.Embedding(5, 2), tsps.Embedding(5, 2)
    used.build(None), unused.build(None)
    before = unused(tf.range(5)).numpy()
    wrapped = tsps.DistributedOptimizer(optimizer("SGD", 1.0))
    variables = [used.trainable_variables[0], unused.trainable_variables[0]]
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(used(tf.constant([1])))
        wrapped.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    np.testing.assert_array_equal(unused(tf.range(5)).numpy(), before)
    with pytest.raises(ValueError, match="no gradients"):
        wrapped.apply_gradients([(None, variable) for variable in variables])
