"""Rows of "What works with what" that are refused. Each case ends with the refusal, which the test reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import pytest
import tensorflow as tf
from registry import refused, works
from twins import (
    BATCH,
    DIM,
    IDS,
    KERAS_3,
    ROWS,
    TARGETS,
    assert_equal,
    assert_fit,
    fit,
    keras,
    model,
    optimizer,
    pair,
    policy,
    step_of,
    wrapped,
)

import tf_sparse_ps as tsps

SCALED = "`LossScaleOptimizer`, inside or around"
PLAIN = "a plain optimizer, or Horovod's wrapper, around a model with tables"
HOROVODS = "`hvd.DistributedOptimizer` around ours or inside"
OF_HOROVOD = "`hvd.DistributedGradientTape`, `BroadcastGlobalVariablesCallback` with tables"
DIFFER = "ranks that differ in tables, rules, options or dense shapes"
STRATEGIES = "other `tf.distribute` strategies of several replicas, or with Horovod"
NAN = "a gradient of a table that is not finite"
SECOND = "second gradients"
OTHERS = "Nadam, Adamax, Adadelta, ..."


def _train(make: Callable[[], Any], **options: Any) -> None:
    ours = model(tsps.Embedding(ROWS, DIM))
    ours.compile(make(), "mse", **options)
    fit(ours, tsps.collectives.current().rank, epochs=1)


def _scaled(inner: Any) -> Any:
    home = keras.optimizers if KERAS_3 else keras.mixed_precision
    return home.LossScaleOptimizer(inner)


# --- options of optimizers ---


@refused("training", "weight decay, but AdamW's", "sparse_optimizer=.*the dense weights keep the optimizer")
def weight_decay_without_a_rule_for_tables(rank: Any) -> None:
    _train(lambda: wrapped(optimizer("SGD", 0.05, weight_decay=0.1)))


def _without_a_rule(name: str, **options: Any) -> None:
    make = lambda: wrapped(optimizer(name, 0.05, **options))  # noqa: E731

    def without(rank: Any) -> None:
        _train(make)

    without.__name__ = f"{name}_{'_'.join(options)}_without_a_rule_for_tables"
    refused("training", OTHERS, "sparse_optimizer=.*the dense weights keep the optimizer")(without)


for _name, _options in (("Nadam", {}), ("Adamax", {}), ("Adadelta", {}), ("Ftrl", {"learning_rate_power": -0.4})):
    _without_a_rule(_name, **_options)


@refused("training", "`mixed_float16`", r"compile\(\) under mixed_float16 makes one.*auto_scale_loss=False")
def policy_of_float16(rank: Any) -> None:
    with policy("mixed_float16"):
        _train(lambda: wrapped(optimizer("SGD", 0.05)))


@works("training", "`mixed_float16`", keras=3)
def policy_of_float16_with_a_fixed_scale(rank: Any) -> None:
    with policy("mixed_float16"):
        ours, reference = pair()
        ours.compile(wrapped(optimizer("SGD", 0.05, loss_scale_factor=8.0)), "mse", auto_scale_loss=False)
        reference.compile(optimizer("SGD", 0.05), "mse", auto_scale_loss=False)
        fit(ours, rank.rank), fit(reference, None)
        assert_equal(rank, ours, reference, tolerance=0.01)  # gradients have 11 bits


@refused("training", SCALED, "cannot wrap a LossScaleOptimizer.*tables would not skip them")
def loss_scaling_inside(rank: Any) -> None:
    wrapped(_scaled(optimizer("SGD", 0.05)))


@refused("training", SCALED, "a LossScaleOptimizer cannot wrap DistributedOptimizer")
def loss_scaling_around(rank: Any) -> None:
    _scaled(wrapped(optimizer("SGD", 0.05)))


@refused("training", "`gradient_accumulation_steps` (Keras 3)", "tables would be updated in every batch", keras=3)
def accumulated_gradients(rank: Any) -> None:
    wrapped(optimizer("SGD", 0.05, gradient_accumulation_steps=2))


@refused("training", "`use_ema`", "would average the dense weights, but not the tables")
def averaged_weights(rank: Any) -> None:
    wrapped(optimizer("SGD", 0.05, use_ema=True))


@refused("training", "`jit_compile=True`", "XLA", keras=2)
def compiled_for_xla(rank: Any) -> None:
    _train(lambda: wrapped(optimizer("SGD", 0.05)), jit_compile=True)


@refused("training", "`jit_compile=True`", r"XLA.*jit_compile=False")
def function_compiled_for_xla(rank: Any) -> None:
    ours = model(tsps.Embedding(ROWS, DIM))
    step = tf.function(step_of(ours, wrapped(optimizer("SGD", 0.05)).apply_gradients), jit_compile=True)
    step(tf.constant(IDS[0][:BATCH]), tf.constant(TARGETS[0][:BATCH]))


@works("training", "`jit_compile=True`", keras=3)
def xla_is_turned_off_by_keras_3(rank: Any) -> None:
    ours, _ = assert_fit(rank, lambda: optimizer("SGD", 0.05), jit_compile=True)
    assert not ours.jit_compile


# --- other reductions ---


@refused("training", STRATEGIES, "Horovod is initialised")
def strategy_beside_horovod(rank: Any) -> None:
    with tf.distribute.MirroredStrategy(_two_devices()).scope():
        wrapped(optimizer("SGD", 0.05))


@refused("training", STRATEGIES, "CentralStorageStrategy|Horovod is initialised")
def another_strategy(rank: Any) -> None:
    with tf.distribute.experimental.CentralStorageStrategy(_two_devices()).scope():
        tsps.Embedding(ROWS, DIM).build(None)


def _two_devices() -> list[str]:
    return ["/cpu:0", "/cpu:1"]


@refused("training", PLAIN, r"tsps\.DistributedOptimizer")
def plain_optimizer(rank: Any) -> None:
    _train(lambda: optimizer("SGD", 0.05))


@refused("training", PLAIN, r"tsps\.DistributedOptimizer")
def horovods_wrapper(rank: Any) -> None:
    _train(lambda: hvd_keras.DistributedOptimizer(optimizer("SGD", 0.05)))


@refused("training", HOROVODS, "replaces .*gradients would be reduced twice")
def horovods_wrapper_inside(rank: Any) -> None:
    wrapped(hvd_keras.DistributedOptimizer(optimizer("SGD", 0.05)))


@refused("training", HOROVODS, "replaces .*gradients would be reduced twice")
def horovods_wrapper_around(rank: Any) -> None:
    hvd_keras.DistributedOptimizer(wrapped(optimizer("SGD", 0.05)))


@refused("training", OF_HOROVOD, r"tsps\.DistributedGradientTape")
def horovods_tape(rank: Any) -> None:
    layer = tsps.Embedding(ROWS, DIM)
    layer.build(None)

    @tf.function
    def step() -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(layer(tf.constant([3, 4])))
        return tape.gradient(loss, layer.trainable_variables)

    step()


@refused("training", OF_HOROVOD, r"tsps\.callbacks\.BroadcastVariables")
def horovods_broadcast(rank: Any) -> None:
    ours = model(tsps.Embedding(ROWS, DIM))
    ours.compile(wrapped(optimizer("SGD", 0.05)), "mse")
    fit(ours, rank.rank, epochs=1, callbacks=[hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)])


@refused("training", "a table's gradient that was reduced by Horovod's operations", r"tsps\.DistributedGradientTape")
def gradients_gathered_by_horovod(rank: Any) -> None:
    ours = model(tsps.Embedding(ROWS, DIM))
    our_optimizer = wrapped(optimizer("SGD", 0.05))

    def apply(pairs: list[Any]) -> None:
        (gradient, anchor), *other_pairs = pairs
        gathered = tf.IndexedSlices(
            hvd.allgather(gradient.values, name="matrix.values"), hvd.allgather(gradient.indices, name="matrix.keys")
        )
        our_optimizer.apply_gradients([(gathered, anchor), *other_pairs])

    tf.function(step_of(ours, apply))(tf.constant(IDS[0][:BATCH]), tf.constant(TARGETS[0][:BATCH]))


def _penalised(of_table: bool) -> Any:
    layer, dense = tsps.Embedding(ROWS, DIM), tf.Variable(tf.ones([DIM, 1]))
    layer.build(None)
    (anchor,) = layer.trainable_variables

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as outer:
            rows = layer(tf.constant([3, 4]))
            with tf.GradientTape() as inner:
                inner.watch(rows)
                if of_table:
                    rows = layer(tf.constant([3, 4]))
                loss = tf.reduce_sum(tf.matmul(rows, dense) ** 2)
            first = inner.gradient(loss, anchor if of_table else rows)
            loss += tf.reduce_sum((first.values if of_table else first) ** 2)
        return outer.gradient(loss, [dense, anchor])

    return step()


@refused("training", SECOND, r"inner\.gradient\(loss, rows\)")
def second_gradients_of_a_table(rank: Any) -> None:
    _penalised(of_table=True)


@works("training", SECOND)
def second_gradients_by_the_rows(rank: Any) -> None:
    dense, rows = _penalised(of_table=False)
    assert float(tf.reduce_max(tf.abs(dense))) > 0
    assert float(tf.reduce_max(tf.abs(rows.values))) > 0


# --- ranks that differ, and gradients that are not finite ---


@refused("training", DIFFER, "sparse_reduction.*rank 0 has frequency.*rank 1 has sum")
def other_options(rank: Any) -> None:
    _train(lambda: wrapped(optimizer("SGD", 0.05), sparse_reduction=["frequency", "sum"][rank.rank]))


@refused("training", DIFFER, r"update rule of table.*rank 0 has adagrad\(0\.1,\).*rank 1 has adagrad\(0\.2,\)")
def other_rules(rank: Any) -> None:
    rule = tsps.optimizers.Adagrad(initial_accumulator_value=[0.1, 0.2][rank.rank])
    _train(lambda: wrapped(optimizer("SGD", 0.05), sparse_optimizer=rule))


@refused("training", DIFFER, r"dense gradients.*rank 1 has")
def other_dense_shapes(rank: Any) -> None:
    ids = keras.layers.Input((3,), dtype="int64")
    hidden = keras.layers.Flatten()(tsps.Embedding(ROWS, DIM)(ids))
    ours = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dense(4 + rank.rank)(hidden)))
    ours.compile(wrapped(optimizer("SGD", 0.05)), "mse")
    fit(ours, rank.rank, epochs=1)


@refused("training", NAN, r"key \d+.*not finite")
def gradient_that_is_not_finite(rank: Any) -> None:
    """The gradient is not finite on rank 1 only, and both ranks get the error."""
    ours = model(tsps.Embedding(ROWS, DIM, name="words"))
    our_optimizer = wrapped(optimizer("SGD", 0.05))
    factor = float("nan") if rank.rank == 1 else 1.0

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(ours.layers[1](ids)) * factor
        variables = ours.layers[1].trainable_variables
        our_optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    step(tf.constant(IDS[rank.rank][:BATCH]))


@works("training", NAN)
def the_batch_after_one_that_is_not_finite(rank: Any) -> None:
    ours, reference = pair()
    ours.compile(wrapped(optimizer("Adam", 0.05)), "mse")
    reference.compile(optimizer("Adam", 0.05), "mse")
    bad = TARGETS[0][:BATCH] * np.float32("nan")
    before = [weight.copy() for weight in ours.get_weights()]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        ours.train_on_batch(IDS[0][:BATCH], bad if rank.rank == 0 else TARGETS[1][:BATCH])
    for weight, earlier in zip(ours.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, earlier)
    fit(ours, rank.rank), fit(reference, None)
    assert_equal(rank, ours, reference)
