"""Invalid input is refused with a message that names the layer and the value received."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from layer_support import IDS, TARGETS, assign, compiled, functional, keras

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops, errors
from tf_sparse_ps._compat import _keras

OUT_OF_RANGE = (errors.KeyRangeError, tf.errors.InvalidArgumentError)


@pytest.mark.parametrize("bad", [10, -1, 2**40], ids=str)
def test_ids_out_of_range_of_a_bounded_layer(bad):
    layer = tsps.Embedding(10, 4, name="words")
    ids = tf.constant([[1, bad]], tf.int64)
    with pytest.raises(OUT_OF_RANGE, match=rf"{bad}.*10"):
        layer(ids)
    with pytest.raises(OUT_OF_RANGE, match=rf"{bad}.*10"):
        tf.function(layer)(ids)
    with pytest.raises(OUT_OF_RANGE, match=rf"{bad}.*10"):
        tsps.EmbeddingReduce(10, 4)(ids)


def test_messages_of_ops_begin_with_what_is_wrong():
    layer = tsps.Embedding(10, 4, name="words")
    with pytest.raises(OUT_OF_RANGE) as caught:
        layer(tf.constant([99]))
    assert "function_node" not in str(caught.value)
    assert "[Op:" not in str(caught.value)
    path = layer.bindings[0].path
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"^table {path}: ids\[0\] = 99 is not in \[0, 10\)"):
        _ops.lookup([tf.constant([99], tf.int64)], [path], [""], [tf.zeros([0, 4])], [0])


@pytest.mark.parametrize("ids", [[[1.0]], [[1.5]], [["a"]], [[True]], [[1 + 1j]]], ids=str)
@pytest.mark.parametrize("cls", [tsps.Embedding, tsps.EmbeddingReduce])
def test_ids_that_are_no_integers(cls, ids):
    layer = cls(10, 4, name="words")
    with pytest.raises(ValueError, match=r"'words'.*ids must be integers.*Received"):
        layer(tf.constant(ids))
    with pytest.raises(ValueError, match=r"'words'.*ids must be integers.*Received"):
        tf.function(layer)(tf.constant(ids))


def test_a_float_input_layer_is_refused_when_the_model_is_made_or_called():
    def use() -> None:
        inputs = keras.Input((3,))
        keras.Model(inputs, tsps.Embedding(10, 4)(inputs))(tf.constant(IDS))

    with pytest.raises(ValueError, match=r"keras\.Input\(shape, dtype='int64'\)"):
        use()


def of_slices(layer):
    """Like `functional`, but the layer gets a slice of the model's input."""
    inputs = keras.Input((3,), dtype="int64")
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs[:, 1:]))))


def sequential(layer):
    return keras.Sequential([layer, keras.layers.Dense(1), keras.layers.Flatten()])


@pytest.mark.parametrize("make", [functional, of_slices, sequential])
@pytest.mark.parametrize("cls", [tsps.Embedding, pytest.param(tsps.EmbeddingReduce, marks=pytest.mark.nightly)])
@pytest.mark.daily_cases(1)
def test_ids_that_were_no_integers_before_keras_cast_them(make, cls):
    layer = cls(None, 4, name="words")
    layer.build((None, 3))
    model = make(layer)
    model.compile(tsps.DistributedOptimizer("sgd"), "mse")
    for right in (np.int8, np.uint16, np.int32, np.uint64, np.int64):
        model.fit(IDS.astype(right), TARGETS, verbose=0)
        assert len(model.predict(IDS.astype(right), verbose=0)) == 2
    for wrong in (np.float32, np.float64, np.bool_):
        ids = IDS.astype(wrong)
        for use in (lambda: model.fit(ids, TARGETS, verbose=0), lambda: model.predict(ids, verbose=0)):  # noqa: B023
            with pytest.raises(ValueError, match=r"'words'.*ids must be integers.*astype\('int64'\)"):
                use()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids must be 0 \.\. 2\*\*63 - 1"):
        model.predict(IDS.astype(np.uint64) + 2**63, verbose=0)
    # In eager mode nothing shows the cast.
    np.testing.assert_array_equal(model(tf.constant(IDS + 0.5)), model(tf.constant(IDS)))
    np.testing.assert_array_equal(
        model(tf.constant(IDS.astype(np.uint64) + 2**63)), model(tf.constant(IDS + np.int64(-(2**63))))
    )


def test_ids_that_do_not_fit_the_type_of_the_models_input():
    narrow = functional(tsps.Embedding(None, 4), dtype="int32")
    assert narrow.predict(np.array([[-(2**31), 0, 2**31 - 1]]), verbose=0).shape == (1, 1)
    for wrong in (2**31, -(2**31) - 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids must be -2\*\*31 \.\. 2\*\*31 - 1"):
            narrow.predict(np.array([[0, 1, wrong]]), verbose=0)


def test_a_cast_that_was_asked_for_is_no_mistake():
    inputs = keras.Input((3,))
    ids = keras.ops.cast(inputs, "int64") if _keras.IS_KERAS_3 else tf.cast(inputs, tf.int64)
    model = keras.Model(inputs, tsps.EmbeddingReduce(10, 4)(ids))
    model.compile(tsps.DistributedOptimizer("sgd"), "mse")
    model.fit(IDS.astype(np.float32), np.ones((2, 4)), verbose=0)


def test_ids_keep_their_64_bits():
    keys = [2**63 - 1, -(2**63), 2**32 + 3, 2**53 + 1, -1]
    layer = tsps.Embedding(None, 2, "zeros")
    layer.build(None)
    for number, key in enumerate(keys):
        assign(layer, [key], number + 1.0)
    np.testing.assert_array_equal(layer(tf.constant(keys, tf.int64))[:, 0], [1, 2, 3, 4, 5])
    model = functional(layer, n=5)
    assert model(np.array([keys])).shape == (1, 1)
    np.testing.assert_array_equal(layer(tf.constant([3, 2**32 + 3], tf.uint64))[:, 0], [0, 3])
    big = tf.constant([2**63], tf.uint64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2\*\*63 - 1"):
        layer(big)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2\*\*63 - 1"):
        tf.function(layer)(big)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"embeddings_regularizer": "l2"}, "activity_regularizer"),
        ({"embeddings_constraint": "unit_norm"}, "axis=1"),
        ({"embeddings_constraint": "non_neg", "table": tsps.TableConfig("t", 4)}, "TableConfig"),
        ({"lora_rank": 2}, "trainable=False"),
        ({"quantization_config": {}}, "TableConfig"),
        ({"use_one_hot_matmul": True}, "one-hot"),
        ({"placement": "sharded"}, "replicated"),
        ({"cache": 100}, "cache"),
        ({"dtype": "float64"}, "TableConfig"),
        ({"dtype": "float16"}, "mixed_float16"),
        ({"table": tsps.TableConfig("t", 5)}, "output_dim=4"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_are_refused_with_the_reason(arguments, words):
    with pytest.raises(ValueError, match=words):
        tsps.Embedding(10, 4, **arguments)


@pytest.mark.parametrize("initializer", ["glorot_uniform", "he_normal", "lecun_normal", "identity", lambda s, dtype: 0])
def test_an_unbounded_vocabulary_refuses_initializers_of_the_whole_matrix(initializer):
    with pytest.raises(ValueError, match=r"unbounded.*input_dim"):
        tsps.Embedding(None, 4, initializer)


def test_an_unbounded_layer_has_no_matrix():
    layer = tsps.Embedding(None, 4, name="words")
    layer(IDS)
    for use in (
        layer.get_weights,
        lambda: layer.set_weights([np.zeros((10, 4))]),
        lambda: layer.embeddings,
        functional(layer).get_weights,
    ):
        with pytest.raises(ValueError, match=r"'words'.*unbounded"):
            use()
    with pytest.raises(ValueError, match="input_dim"):
        tsps.Embedding(None, 4, weights=np.zeros((10, 4)))(IDS)


def test_quantize_and_lora_are_refused():
    layer = tsps.Embedding(10, 4, name="words")
    with pytest.raises(ValueError, match="words"):
        layer.quantize("int8")
    with pytest.raises(ValueError, match="words"):
        layer.enable_lora(2)


def test_a_gradient_that_is_not_finite_stops_the_step_and_changes_nothing():
    model = compiled(tsps.Embedding(10, 4, name="words"))
    model.fit(IDS, TARGETS, verbose=0)
    before = model.get_layer("words").get_weights()[0]
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"not finite|NaN|nan"):
        model.fit(IDS, TARGETS * np.float32("nan"), verbose=0)
    np.testing.assert_array_equal(model.get_layer("words").get_weights()[0], before)


def test_a_layer_called_inside_control_flow_is_refused_where_gradients_cross_it():
    layer = tsps.Embedding(10, 4)
    layer(IDS)
    ids = tf.constant(IDS)
    (weight,) = layer.trainable_weights

    @tf.function
    def outside(flag):
        with tf.GradientTape() as tape:
            loss = tf.cond(flag, lambda: tf.reduce_sum(layer(ids)), lambda: 0.0)
        return tape.gradient(loss, [weight])

    with pytest.raises(ValueError, match=r"tf\.cond"):
        outside(tf.constant(True))

    @tf.function
    def loop(n):
        with tf.GradientTape() as tape:
            loss = 0.0
            for _ in tf.range(n):
                loss += tf.reduce_sum(layer(ids))
        return tape.gradient(loss, [weight])

    with pytest.raises(ValueError, match=r"tf\.while_loop"):
        loop(tf.constant(2))
    x = tf.Variable(1.0)
    recompute = tf.recompute_grad(lambda x: tf.reduce_sum(layer(ids) * x))
    with tf.GradientTape() as tape:
        loss = recompute(x)
    with pytest.raises(ValueError, match=r"tf\.recompute_grad"):
        tape.gradient(loss, [x, weight])

    @tf.function
    def inside(flag):
        def body():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids))
            return tf.reduce_sum(tape.gradient(loss, [weight])[0].values)

        return tf.cond(flag, body, lambda: 0.0)

    assert float(inside(tf.constant(True))) == IDS.size * 4
    assert float(tf.cond(tf.constant(True), lambda: tf.reduce_sum(layer(ids)), lambda: 0.0)) is not None


def test_several_steps_per_execution_work():
    model = functional(tsps.Embedding(10, 4))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", steps_per_execution=2)
    model.fit(np.tile(IDS, (4, 1)), np.tile(TARGETS, (4, 1)), batch_size=2, verbose=0)


def test_jit_compile():
    model = functional(tsps.Embedding(10, 4))
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse")
    assert not model.jit_compile
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    if _keras.IS_KERAS_3:
        model.fit(IDS, TARGETS, verbose=0)
        assert not model.jit_compile
    else:  # Keras 2 does not consult layers
        with pytest.raises(ValueError, match="jit_compile=False"):
            model.fit(IDS, TARGETS, verbose=0)
    layer = tsps.Embedding(10, 4)
    layer(IDS)
    with pytest.raises(ValueError, match="jit_compile=False"):
        tf.function(layer, jit_compile=True)(tf.constant(IDS))
