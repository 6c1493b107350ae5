"""Every optimizer except tsps.DistributedOptimizer refuses a table by name. None silently skips it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from layer_support import IDS, TARGETS, functional, keras, keras2_only, keras3_only

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

MATCH = "tsps.DistributedOptimizer"


def optimizers():
    instances = [
        keras.optimizers.SGD(0.1),
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.optimizers.Adam(0.1),
        keras.optimizers.Adam(0.1, amsgrad=True, weight_decay=0.1),
        keras.optimizers.Adagrad(0.1, clipnorm=1.0),
        keras.optimizers.RMSprop(0.1, global_clipnorm=1.0),
        keras.optimizers.Ftrl(0.1),
        keras.optimizers.SGD(0.1, use_ema=True),
        keras.optimizers.Adadelta(0.1, clipvalue=0.1),
    ]
    if hasattr(keras.optimizers, "Lion"):
        instances.append(keras.optimizers.Lion(0.1))
    if _keras.IS_KERAS_3:
        instances.append(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
        instances.append(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)))
    else:
        instances.append(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(0.1)))
        instances += [
            keras.optimizers.legacy.SGD(0.1),
            keras.optimizers.legacy.Adam(0.1),
            keras.optimizers.legacy.Ftrl(0.1),
        ]
    return instances


@pytest.mark.parametrize("number", range(len(optimizers())), ids=lambda n: f"{type(optimizers()[n]).__name__}-{n}")
@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
@pytest.mark.daily_cases(6)
def test_refused_in_fit_and_in_apply_gradients(number, bounded):
    layer = tsps.Embedding(10 if bounded else None, 4)
    model = functional(layer)
    model.compile(optimizers()[number], "mse")
    before = model(IDS).numpy()
    with pytest.raises(ValueError, match=MATCH):
        model.fit(IDS, TARGETS, verbose=0)
    optimizer = optimizers()[number]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(IDS) ** 2)
    grads = tape.gradient(loss, model.trainable_weights)
    with pytest.raises(ValueError, match=MATCH):
        optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))

    @tf.function
    def step():
        optimizers_apply = optimizer.apply_gradients
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(IDS) ** 2)
        optimizers_apply(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True))

    with pytest.raises(ValueError, match=MATCH):
        step()
    np.testing.assert_array_equal(model(IDS), before)


def test_an_optimizer_over_the_anchor_alone_is_refused():
    layer = tsps.Embedding(10, 4)
    layer(IDS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(IDS)))
    grads = tape.gradient(loss, layer.trainable_weights)
    with pytest.raises(ValueError, match=MATCH):
        keras.optimizers.SGD(0.1).apply_gradients(zip(grads, layer.trainable_weights, strict=True))


def test_minimize_and_build_are_refused():
    layer = tsps.Embedding(10, 4)
    layer(IDS)
    optimizer = keras.optimizers.SGD(0.1)
    with pytest.raises(ValueError, match=MATCH):
        optimizer.build(layer.trainable_weights)


@keras2_only
def test_minimize_is_refused():
    layer = tsps.Embedding(10, 4)
    layer(IDS)
    with pytest.raises(ValueError, match=MATCH):
        keras.optimizers.SGD(0.1).minimize(lambda: tf.reduce_sum(layer(IDS)), layer.trainable_weights)


@keras3_only
def test_keras_3_apply_is_refused_on_the_tf_variable_too():
    layer = tsps.Embedding(10, 4)
    layer(IDS)
    variable = layer.trainable_weights[0].value
    for name in ("assign_sub", "scatter_sub", "assign", "scatter_update"):
        with pytest.raises(ValueError, match=MATCH):
            getattr(variable, name)(None)


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "horovod"])
def test_horovods_wrapper_is_refused(ours):
    hvd = pytest.importorskip("horovod.tensorflow.keras")
    if not hvd.is_initialized():
        hvd.init()
    model = functional(tsps.Embedding(10, 4))
    inner = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)) if ours else keras.optimizers.SGD(0.1)

    def use() -> None:
        model.compile(hvd.DistributedOptimizer(inner), "mse")
        model.fit(IDS, TARGETS, verbose=0)

    with pytest.raises(ValueError, match=MATCH):
        use()


def test_the_guard_lets_our_optimizer_through():
    model = functional(tsps.Embedding(10, 4))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    before = model(IDS).numpy()
    model.fit(IDS, TARGETS, verbose=0)
    assert np.abs(model(IDS).numpy() - before).max() > 0


@pytest.mark.parametrize("name", ["GradientDescentOptimizer", "AdagradOptimizer", "AdamOptimizer"])
def test_optimizers_of_tensorflow_1_are_refused(name):
    layer = tsps.Embedding(10, 4)
    layer(IDS)
    (weight,) = layer.trainable_weights
    variable = weight if isinstance(weight, tf.Variable) else weight.value
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(IDS)))
    grads = tape.gradient(loss, [variable])
    with pytest.raises(ValueError, match=MATCH):
        getattr(tf.compat.v1.train, name)(0.1).apply_gradients(zip(grads, [variable], strict=True))
