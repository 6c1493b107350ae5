"""Combinations that cannot work are refused at construction or at compile time, with the reason and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from models import DIM, KERAS_3, ROWS, fit, keras, model, optimizer

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import horovod_setup, registry
from tf_sparse_ps.errors import UnsupportedError


def wrapped(*args: Any, **options: Any) -> Any:
    return tsps.DistributedOptimizer(*args, **options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: wrapped(wrapped("sgd")), "reduced twice"),
        (lambda: wrapped(object()), "Keras optimizer"),
        (lambda: wrapped("sgd", sparse_reduction="mean"), "frequency"),
        (lambda: wrapped("sgd", topology="ring"), "hierarchical"),
        (lambda: wrapped("sgd", schedule="synchronous"), "Synchronous"),
        (lambda: wrapped("sgd", collectives="mpi"), "horovod"),
        (lambda: wrapped("sgd", broadcast="yes"), "True or False"),
        (lambda: wrapped("sgd", sparse_optimizer="lion"), "adagrad"),
        (lambda: wrapped(optimizer("SGD", 0.1, use_ema=True)), "average the dense weights"),
    ],
)
def test_at_construction(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.skipif(not KERAS_3, reason="gradient_accumulation_steps is Keras 3's")
def test_gradient_accumulation() -> None:
    with pytest.raises(ValueError, match="gradient_accumulation_steps=2"):
        wrapped(optimizer("SGD", 0.1, gradient_accumulation_steps=2))


def test_loss_scaling_inside_and_around() -> None:
    scale = keras.optimizers.LossScaleOptimizer if KERAS_3 else keras.mixed_precision.LossScaleOptimizer
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        wrapped(scale(optimizer("SGD", 0.1)))
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        scale(wrapped(optimizer("SGD", 0.1)))


def test_mixed_float16_at_compile() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        tsps_model = model(tsps.Embedding(ROWS, DIM))
        with pytest.raises(ValueError, match="mixed_bfloat16"):
            tsps_model.compile(wrapped(optimizer("SGD", 0.1)), "mse")
        if KERAS_3:
            tsps_model.compile(wrapped(optimizer("SGD", 0.1, loss_scale_factor=8.0)), "mse", auto_scale_loss=False)
            fit(tsps_model, 1)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_mixed_bfloat16_works() -> None:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        tsps_model = model(tsps.Embedding(ROWS, DIM))
        tsps_model.compile(wrapped(optimizer("Adagrad", 0.05)), "mse")
        losses = fit(tsps_model, 4).history["loss"]
        assert losses[-1] < losses[0]
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_distribution_strategies() -> None:
    # One replica is one rank. tests/distribute has several replicas.
    for strategy in (tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy(["/cpu:0"])):
        with strategy.scope():
            layer, weight, wrapped_optimizer = (
                tsps.Embedding(ROWS, DIM),
                tf.Variable(1.0),
                wrapped(optimizer("SGD", 0.5)),
            )
            layer.build(None)
            with pytest.raises(ValueError, match=r"strategy\.run\(\)"):
                wrapped_optimizer.apply_gradients([(tf.constant(1.0), weight)])
        before = np.asarray(layer(tf.constant([3])))

        def step(layer: Any = layer, weight: Any = weight, wrapped_optimizer: Any = wrapped_optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = weight + tf.reduce_sum(layer(tf.constant([3, 3])))
            variables = [*layer.trainable_variables, weight]
            wrapped_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        strategy.run(step)
        tf.function(lambda strategy=strategy, step=step: strategy.run(step))()
        assert weight.numpy() == 0.0
        np.testing.assert_allclose(np.asarray(layer(tf.constant([3]))), before - 2.0, rtol=1e-6)


def test_xla() -> None:
    tsps_model = model(tsps.Embedding(ROWS, DIM))
    if KERAS_3:  # the layer reports that it does not support jit_compile
        with pytest.warns(UserWarning, match="jit_compile"):
            tsps_model.compile(wrapped("sgd"), "mse", jit_compile=True)
    else:
        tsps_model.compile(wrapped("sgd"), "mse", jit_compile=True)
        with pytest.raises(ValueError, match="XLA"):
            fit(tsps_model, 1)
    tsps_model.compile(wrapped("sgd"), "mse")
    fit(tsps_model, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizer("Adam", 0.1, weight_decay=0.01),
        lambda: optimizer("AdamW", 0.1, amsgrad=True),
        lambda: optimizer("Ftrl", 0.1, learning_rate_power=-0.4),
        lambda: optimizer("Nadam", 0.1),
        lambda: optimizer("Adamax", 0.1),
    ],
)
@pytest.mark.daily_cases(2)
def test_optimizers_without_a_rule_for_tables(make: Any) -> None:
    tsps_model = model(tsps.Embedding(ROWS, DIM))
    tsps_model.compile(wrapped(make()), "mse")
    with pytest.raises(ValueError, match="sparse_optimizer="):
        fit(tsps_model, 1)
    tsps_model.compile(wrapped(make(), sparse_optimizer="adagrad"), "mse")
    fit(tsps_model, 1)


def test_gradients_that_something_made_dense() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    layer.build(None)
    (anchor,) = layer.trainable_variables
    with pytest.raises(ValueError, match="IndexedSlices"):
        wrapped("sgd").apply_gradients([(tf.zeros([0, DIM]), anchor)])


@pytest.mark.skipif(KERAS_3, reason="Keras 2's argument")
def test_skipping_aggregation() -> None:
    with pytest.raises(ValueError, match="aggregates"):
        wrapped("sgd").apply_gradients([(tf.constant(1.0), tf.Variable(1.0))], skip_gradients_aggregation=True)


def test_a_gradient_that_is_not_finite_leaves_the_step_unmade() -> None:
    layer = tsps.Embedding(ROWS, DIM)
    layer.build(None)
    optimizer_used, job = wrapped("sgd"), tsps.job.current()
    step, before = int(job.step.numpy()), layer(tf.range(ROWS)).numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([3, 4])) * float("nan"))
    gradients = tape.gradient(loss, layer.trainable_variables)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        optimizer_used.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
    assert int(job.step.numpy()) == step
    np.testing.assert_array_equal(layer(tf.range(ROWS)).numpy(), before)


def test_local_collectives_ask_for_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setattr(horovod_setup, "is_initialised", lambda: False)
    for kind in ("auto", "horovod", "local"):
        with pytest.raises(RuntimeError, match=r"hvd\.init\(\)"):
            registry.resolve(kind)


def test_horovodruns_elastic_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    for begin in (
        tsps.init,
        registry.resolve,
        lambda: registry.resolve("local"),
        lambda: wrapped("sgd"),
    ):
        with pytest.raises(UnsupportedError, match=r"elastic mode .* HOROVOD_ELASTIC=1"):
            begin()
    monkeypatch.setenv("HOROVOD_ELASTIC", "0")
    assert registry.resolve() is not None


class TestHorovodsWrappers:
    """Horovod's own wrappers, where tsps can detect them."""

    @pytest.fixture
    def hvd(self) -> Any:
        pytest.importorskip("horovod")
        import horovod.tensorflow as base

        base.init()
        import horovod.tensorflow.keras as hvd

        return hvd

    def test_wrapped_by_ours(self, hvd: Any) -> None:
        with pytest.raises(ValueError, match="replaces horovod"):
            wrapped(hvd.DistributedOptimizer(optimizer("SGD", 0.1)))

    def test_around_ours(self, hvd: Any) -> None:
        with pytest.raises(ValueError, match="replaces horovod"):
            hvd.DistributedOptimizer(wrapped(optimizer("SGD", 0.1)))

    def test_around_the_plain_optimizer_of_a_table(self, hvd: Any) -> None:
        tsps_model = model(tsps.Embedding(ROWS, DIM))
        tsps_model.compile(hvd.DistributedOptimizer(optimizer("SGD", 0.1)), "mse")
        with pytest.raises(ValueError, match=r"tsps\.DistributedOptimizer"):
            fit(tsps_model, 1)

    def test_tape_around_and_inside_ours(self, hvd: Any) -> None:
        import horovod.tensorflow as base

        with pytest.raises(ValueError, match="plain"):
            tsps.DistributedGradientTape(base.DistributedGradientTape(tf.GradientTape()))

    @pytest.mark.parametrize("nested", [False, True])
    def test_a_table_whose_gradient_was_gathered_in_a_graph(self, hvd: Any, nested: bool) -> None:
        import horovod.tensorflow as base

        from tf_sparse_ps.reduction import gradients

        layer = tsps.Embedding(ROWS, DIM)
        layer.build(None)

        def within(action: Any) -> Any:
            return tf.function(action) if nested else action

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(base.allreduce(layer(tf.constant([3, 4]))))
            return tape.gradient(loss, layer.trainable_variables)[0]

        def gathered(slices: Any) -> Any:
            # Horovod's tape does this on several ranks; on one rank it returns the slices unchanged.
            return tf.IndexedSlices(base.allgather(slices.values), base.allgather(slices.indices))

        @tf.function(autograph=False)
        def step() -> None:
            slices = within(gradient)()
            gradients.refuse_reduced(slices, layer.bindings[0])
            slices = tf.IndexedSlices(
                *within(lambda *parts: [part * 2 for part in parts])(slices.values, slices.indices)
            )
            gradients.refuse_reduced(slices, layer.bindings[0])
            gradients.refuse_reduced(within(gathered)(slices), layer.bindings[0])

        with pytest.raises(ValueError, match="DistributedGradientTape"):
            step()

    @pytest.mark.parametrize("of_keras", [True, False])
    @pytest.mark.parametrize("graph", [True, False])
    def test_tape_around_a_table(self, hvd: Any, graph: bool, of_keras: bool) -> None:
        import horovod.tensorflow as base

        layer = tsps.Embedding(ROWS, DIM)
        layer.build(None)
        variables = layer.trainable_variables if of_keras else [_keras.tf_variable(layer.trainable_variables[0])]

        def step() -> Any:
            with base.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(layer(tf.constant([3, 4])))
            return tape.gradient(loss, variables)

        with pytest.raises(ValueError, match=r"tsps\.DistributedGradientTape in place of hvd\.DistributedGradientTape"):
            (tf.function(step) if graph else step)()

    def test_broadcast_around_a_table(self, hvd: Any) -> None:
        tsps_model = model(tsps.Embedding(ROWS, DIM))
        tsps_model.compile(wrapped("sgd"), "mse")
        with pytest.raises(ValueError, match=r"tsps\.callbacks\.BroadcastVariables in place"):
            fit(tsps_model, 1, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@pytest.mark.parametrize("cls", [tsps.Embedding, tsps.EmbeddingReduce])
def test_second_gradients_of_a_table(cls: Any) -> None:
    layer, dense = cls(ROWS, DIM), tf.Variable([[1.0], [2.0], [3.0]])
    layer.build(None)
    (anchor,) = layer.trainable_variables
    ids = tf.constant([[3, 4]])

    def penalised(of_the_weights: bool) -> Any:
        with tf.GradientTape() as outer:
            rows = layer(ids)
            with tf.GradientTape() as inner:
                inner.watch(rows)
                if of_the_weights:
                    rows = layer(ids)
                loss = tf.reduce_sum(tf.matmul(tf.reshape(rows, [-1, DIM]), dense) ** 2)
            inner_gradient = inner.gradient(loss, anchor if of_the_weights else rows)
            loss += tf.reduce_sum((inner_gradient.values if of_the_weights else inner_gradient) ** 2)
        return outer.gradient(loss, [dense, anchor])

    for way in (penalised, tf.function(penalised)):
        with pytest.raises(ValueError, match=r"inner\.gradient\(loss, rows\)"):
            way(True)
        of_dense, of_table = way(False)
        assert of_dense.shape == (3, 1)
        assert float(tf.reduce_max(tf.abs(of_table.values))) > 0.0
