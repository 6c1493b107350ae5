"""`DistributedOptimizer` in `fit` and in loops gives what the wrapped Keras optimizer gives a Keras model."""

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
TOLERANCE = 2e-5  # after 18 updates in float32, Adam's division by small roots included


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", *LEGACY])
@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"steps_per_execution": 4}], ids=["graph", "eager", "several-steps"]
)
@pytest.mark.daily_cases(2)
def test_equal_in_fit(name: str, options: dict[str, Any]) -> None:
    ours, theirs = twins(lambda: optimizer(name, 0.05), **options)
    fit(ours), fit(theirs)
    # The legacy Adagrad has epsilon in another place.
    assert difference(ours, theirs) < TOLERANCE
    assert int(ours.optimizer.iterations) == 18


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
    ours, theirs = twins(lambda: optimizer(name, 0.02, **options))
    start = [weights.copy() for weights in ours.get_weights()]
    fit(ours), fit(theirs)
    # The division by the root of a small difference: what is rounded away of two numbers of nearly the same size.
    assert difference(ours, theirs) < (2e-3 if "centered" in rule else TOLERANCE)
    assert np.abs(ours.get_weights()[0] - start[0]).max() > 1e-2


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
    ours, theirs = twins(lambda: optimizer(name, schedule))
    start = ours.get_weights()
    fit(ours), fit(theirs)
    assert difference(ours, theirs) < TOLERANCE
    # One more update at another rate would be seen: the rate is that of this very step, not of the one before.
    ours.set_weights(start)
    assert difference(ours, theirs) > 1e-3


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", *LEGACY])
@pytest.mark.daily_cases(1)
def test_callbacks_that_set_the_learning_rate_drive_tables(name: str) -> None:
    def callbacks() -> list[Any]:
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: [0.1, 0.1, 0.05, 0.05, 0.2][epoch]),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", min_delta=100.0, patience=1, factor=0.1),
        ]

    ours, theirs = twins(lambda: optimizer(name, 0.3))
    rates = fit(ours, 5, callbacks()).history
    fit(theirs, 5, callbacks())
    assert difference(ours, theirs) < TOLERANCE
    rate = rates.get("learning_rate", rates.get("lr"))
    assert rate is not None
    assert len(set(np.round(rate, 6))) > 1


@pytest.mark.parametrize("clip", [{"clipnorm": 0.05}, {"clipvalue": 0.01}, {"global_clipnorm": 0.05}], ids=str)
@pytest.mark.parametrize("name", ["SGD", "Adam", *LEGACY[:1]])
@pytest.mark.daily_cases(1)
def test_clipping_acts_on_tables_as_on_weights(name: str, clip: dict[str, float]) -> None:
    ours, theirs = twins(lambda: optimizer(name, 0.05, **clip))
    free, _ = twins(lambda: optimizer(name, 0.05))
    free.set_weights(ours.get_weights())
    fit(ours), fit(theirs), fit(free)
    assert difference(ours, theirs) < TOLERANCE
    assert difference(ours, free) > 1e-4, "the limit must bind, or the test says nothing"


@pytest.mark.skipif(not KERAS_3, reason="loss_scale_factor is Keras 3's")
@pytest.mark.parametrize("clip", [{}, {"clipnorm": 0.05}, {"global_clipnorm": 0.05}], ids=str)
@pytest.mark.daily_cases(1)
def test_a_fixed_loss_scale_is_taken_out_again(clip: dict[str, float]) -> None:
    # Keras's own cannot do it for sparse gradients, so: as without a scale.
    ours, theirs = twins(lambda: optimizer("Adagrad", 0.05, **clip))
    ours.compile(tsps.DistributedOptimizer(optimizer("Adagrad", 0.05, loss_scale_factor=1024.0, **clip)), "mse")
    fit(ours), fit(theirs)
    assert difference(ours, theirs) < TOLERANCE


def test_weight_decay_is_for_dense_weights_only() -> None:
    ours = model(tsps.Embedding(ROWS, DIM))
    ours.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.05, weight_decay=0.1)), "mse")
    with pytest.raises(ValueError, match="sparse_optimizer="):
        fit(ours, 1)
    plain = model(tsps.Embedding(ROWS, DIM))
    plain.set_weights(ours.get_weights())
    wrapped = tsps.DistributedOptimizer(optimizer("SGD", 0.05, weight_decay=0.1), sparse_optimizer="sgd")
    ours.compile(wrapped, "mse")
    plain.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.05)), "mse")
    one = {"batch_size": BATCH, "verbose": 0}
    ours.fit(IDS[:BATCH], TARGETS[:BATCH], **one), plain.fit(IDS[:BATCH], TARGETS[:BATCH], **one)
    assert (ours.get_weights()[0] == plain.get_weights()[0]).all()
    assert (ours.get_weights()[1] != plain.get_weights()[1]).any()


def test_tables_take_another_rule_and_rate_than_dense_weights() -> None:
    rule = tsps.optimizers.Adagrad(learning_rate=0.5, initial_accumulator_value=0.3)
    ours, theirs = twins(lambda: optimizer("SGD", 0.0), wrap={"sparse_optimizer": rule})
    before = theirs.get_weights()
    theirs.compile(optimizer("Adagrad", 0.5, initial_accumulator_value=0.3), "mse")
    one = {"batch_size": BATCH, "verbose": 0}
    ours.fit(IDS[:BATCH], TARGETS[:BATCH], **one), theirs.fit(IDS[:BATCH], TARGETS[:BATCH], **one)
    np.testing.assert_allclose(ours.get_weights()[0], theirs.get_weights()[0], rtol=1e-5)
    np.testing.assert_array_equal(ours.get_weights()[1], before[1])


def test_a_rule_may_have_its_own_schedule() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.0, 0.3])
    rule = tsps.optimizers.SGD(learning_rate=schedule)
    ours, _ = twins(lambda: optimizer("SGD", 0.01), wrap={"sparse_optimizer": rule})
    start = ours.get_weights()[0]
    one = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    ours.fit(IDS[: 3 * BATCH], TARGETS[: 3 * BATCH], **one)  # steps 0, 1, 2: the rate is 0 up to step 2
    np.testing.assert_array_equal(ours.get_weights()[0], start)
    ours.fit(IDS[:BATCH], TARGETS[:BATCH], **one)
    assert (ours.get_weights()[0] != start).any()


def test_models_of_tables_only() -> None:
    ids = keras.layers.Input((3,), dtype="int64")
    layer = tsps.Embedding(None, 1)
    ours = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(layer(ids)))
    ours.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.1)), "mse")
    history = fit(ours, 10).history["loss"]
    assert history[-1] < history[0]
    assert int(ours.optimizer.iterations) == 60


def test_models_without_tables() -> None:
    def plain() -> Any:
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])

    # No rule for tables is needed, so momentum is fine.
    ours, theirs = plain(), plain()
    ours.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.01, momentum=0.9)), "mse")
    theirs.compile(optimizer("SGD", 0.01, momentum=0.9), "mse")
    x = IDS.astype("float32")
    ours.fit(x, TARGETS, verbose=0, shuffle=False), theirs.fit(x, TARGETS, verbose=0, shuffle=False)
    assert difference(ours, theirs) == 0


def loop(ours: Any, wrapped: Any, tape: Any, *, graph: bool) -> None:
    def step(ids: tf.Tensor, targets: tf.Tensor) -> None:
        with tape() as recorded:
            loss = tf.reduce_mean((ours(ids, training=True) - targets) ** 2)
        variables = ours.trainable_variables
        wrapped.apply_gradients(zip(recorded.gradient(loss, variables), variables, strict=True))

    run = tf.function(step) if graph else step
    for start in range(0, len(IDS), BATCH):
        run(tf.constant(IDS[start : start + BATCH]), tf.constant(TARGETS[start : start + BATCH]))


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("distributed", [True, False], ids=["our-tape", "plain-tape"])
def test_equal_in_a_loop_of_ones_own(graph: bool, distributed: bool) -> None:
    def ours_tape() -> Any:
        return tsps.DistributedGradientTape(tf.GradientTape())

    ours, theirs = twins(lambda: optimizer("Adagrad", 0.05))
    tape = ours_tape if distributed else tf.GradientTape
    loop(ours, ours.optimizer, tape, graph=graph)
    loop(theirs, theirs.optimizer, tf.GradientTape, graph=graph)
    assert difference(ours, theirs) < TOLERANCE


def test_steps_in_a_graph_loop() -> None:
    ours, theirs = twins(lambda: optimizer("Adagrad", 0.05))
    ours.optimizer.build(ours.trainable_variables)
    theirs.optimizer.build(theirs.trainable_variables)

    def run(one: Any) -> None:
        @tf.function
        def steps() -> None:
            for i in tf.range(6):
                ids = tf.constant(IDS)[i * BATCH : (i + 1) * BATCH]
                targets = tf.constant(TARGETS)[i * BATCH : (i + 1) * BATCH]
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((one(ids) - targets) ** 2)
                variables = one.trainable_variables
                one.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        steps()

    run(ours), run(theirs)
    assert difference(ours, theirs) < TOLERANCE


def test_several_optimizers_in_one_model() -> None:
    ours = model(tsps.Embedding(ROWS, DIM))
    theirs = model(keras.layers.Embedding(ROWS, DIM))
    ours.set_weights(theirs.get_weights())
    step = int(tsps.job.current().step.numpy())

    def run(one: Any, wrap: Any) -> None:
        first, second = wrap(optimizer("Adagrad", 0.05)), wrap(optimizer("SGD", 0.01))

        @tf.function
        def train(ids: tf.Tensor, targets: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((one(ids) - targets) ** 2)
            variables = one.trainable_variables
            gradients = tape.gradient(loss, variables)
            first.apply_gradients([(gradients[0], variables[0])])
            second.apply_gradients(list(zip(gradients, variables, strict=True))[1:])

        for start in range(0, len(IDS), BATCH):
            train(tf.constant(IDS[start : start + BATCH]), tf.constant(TARGETS[start : start + BATCH]))

    run(ours, tsps.DistributedOptimizer), run(theirs, lambda plain: plain)
    assert difference(ours, theirs) < TOLERANCE
    assert int(tsps.job.current().step.numpy()) == step + 6, "only an optimizer with tables makes the job's steps"


def test_a_layer_called_twice_counts_a_key_once() -> None:
    layer = tsps.Embedding(5, 2, embeddings_initializer="zeros")
    layer.build(None)
    wrapped = tsps.DistributedOptimizer(optimizer("SGD", 1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1, 1, 2]))) + tf.reduce_sum(3.0 * layer(tf.constant([2, 3])))
    wrapped.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables, strict=True))
    np.testing.assert_array_equal(layer(tf.range(5)).numpy()[:, 0], [0, -2, -4, -3, 0])


def test_two_layers_of_keras_and_ours_side_by_side() -> None:
    """Sparse gradients of other layers: small ones are made dense, big ones stay sparse and come out unique."""
    from tf_sparse_ps.reduction import gradients

    def build(limit: int) -> np.ndarray:
        keras.utils.set_random_seed(2)
        ids = keras.layers.Input((3,), dtype="int64")
        theirs = keras.layers.Embedding(ROWS, DIM)
        ours = tsps.Embedding(ROWS, DIM, embeddings_initializer="ones")
        both = keras.layers.Concatenate()([theirs(ids), ours(ids)])
        one = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(both)))
        before, gradients._DENSIFY_UP_TO = gradients._DENSIFY_UP_TO, limit
        try:
            one.compile(tsps.DistributedOptimizer(optimizer("SGD", 0.05)), "mse")
            repeated = np.concatenate([IDS[:, :2], IDS[:, :1]], axis=1)  # ids twice in a row
            one.fit(repeated, TARGETS, BATCH, verbose=0, shuffle=False, epochs=2)
        finally:
            gradients._DENSIFY_UP_TO = before
        return theirs.get_weights()[0]

    np.testing.assert_allclose(build(10**9), build(0), rtol=1e-5)


@pytest.mark.nightly
def test_compiling_again_with_another_rule_starts_its_slots_anew() -> None:
    ours, _ = twins(lambda: optimizer("Adagrad", 0.05))
    fit(ours, 1)
    ours.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.05)), "mse")
    with pytest.warns(UserWarning, match="slots are reset"):
        fit(ours, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ours.compile(tsps.DistributedOptimizer(optimizer("Adam", 0.01)), "mse")
        fit(ours, 1)


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
        wrapped.apply_gradients([(None, one) for one in variables])
