"""tsps.Embedding has the arguments and results of keras.layers.Embedding."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf
from layer_support import IDS, functional, keras, keras2_only, keras3_only

import tf_sparse_ps as tsps
from tf_sparse_ps._compat._keras import IS_KERAS_3

pytestmark = [pytest.mark.keras2_smoke, pytest.mark.quick]


def test_arguments_have_the_order_and_defaults_of_keras():
    keras_parameters = inspect.signature(keras.layers.Embedding.__init__).parameters
    tsps_parameters = inspect.signature(tsps.Embedding.__init__).parameters
    names = [name for name, p in keras_parameters.items() if p.kind is not p.VAR_KEYWORD]
    assert list(tsps_parameters)[: len(names)] == names
    assert all(tsps_parameters[name].default == keras_parameters[name].default for name in names)
    extra = [name for name, p in tsps_parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert extra == ["table", "placement", "storage", "cache", "eviction", "admission"]


def test_positional_arguments():
    positions = ["input_dim", "output_dim", "embeddings_initializer"]
    layer = tsps.Embedding(7, 3, "ones")
    assert [getattr(layer, name) for name in positions[:2]] == [7, 3]
    np.testing.assert_array_equal(layer(tf.constant([6])), np.ones((1, 3)))


@keras3_only
def test_weights_are_the_seventh_argument_of_keras_3():
    matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
    layer = tsps.Embedding(3, 2, "uniform", None, None, False, matrix)
    assert layer.built
    np.testing.assert_array_equal(layer(IDS % 3), matrix[IDS % 3])


@keras2_only
def test_mask_zero_is_the_seventh_argument_of_keras_2():
    assert tsps.Embedding(3, 2, "uniform", None, None, None, True).mask_zero


@pytest.mark.parametrize(
    "ids",
    [
        np.int64(3),
        [1, 2],
        [[1, 2], [3, 3]],
        [[[1], [2]], [[0], [9]]],
        np.zeros((2, 0), np.int64),
        np.array([1, 9], np.uint8),
        np.array([1, 9], np.int8),
        np.array([1, 9], np.uint32),
    ],
    ids=str,
)
def test_values_of_any_rank_and_integer_type(pair, ids):
    tsps_layer, keras_layer = pair(10, 4)
    ids = tf.constant(ids)
    np.testing.assert_array_equal(tsps_layer(ids), keras_layer(ids))


def test_ragged(pair):
    tsps_layer, keras_layer = pair(10, 4)
    for ids in (tf.ragged.constant([[1, 2], [], [3]]), tf.ragged.constant([[[1], [2, 3]], []])):
        actual, expected = tsps_layer(ids), keras_layer(ids)
        assert isinstance(actual, tf.RaggedTensor)
        assert actual.to_list() == expected.to_list()


def test_sparse(pair):
    tsps_layer, keras_layer = pair(10, 4)
    ids = tf.sparse.from_dense([[1, 0, 2], [0, 0, 0]])
    np.testing.assert_allclose(tsps_layer(ids), keras_layer(ids), rtol=1e-6)
    assert tsps_layer(ids).shape == (2, 3, 4)


@keras2_only
def test_sparse_output_of_keras_2(pair):
    tsps_layer, keras_layer = pair(10, 4, sparse=True)
    ids = tf.sparse.from_dense([[1, 0, 2], [0, 0, 0]])
    np.testing.assert_array_equal(tsps_layer(ids).indices, keras_layer(ids).indices)
    np.testing.assert_array_equal(tsps_layer(ids).values, keras_layer(ids).values)


def test_mask(pair):
    tsps_layer, keras_layer = pair(10, 4, mask_zero=True)
    np.testing.assert_array_equal(tsps_layer.compute_mask(tf.constant(IDS)), keras_layer.compute_mask(tf.constant(IDS)))
    assert tsps_layer.supports_masking
    actual = keras.Sequential(
        [tsps_layer, keras.layers.LSTM(3, kernel_initializer="ones", recurrent_initializer="ones")]
    )
    expected = keras.Sequential(
        [keras_layer, keras.layers.LSTM(3, kernel_initializer="ones", recurrent_initializer="ones")]
    )
    np.testing.assert_allclose(actual(tf.constant(IDS)), expected(tf.constant(IDS)), rtol=1e-5)
    tsps_layer, keras_layer = pair(10, 4)
    assert tsps_layer.compute_mask(tf.constant(IDS)) is None
    assert keras_layer.compute_mask(tf.constant(IDS)) is None


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float32"])
def test_mixed_precision(pair, policy):
    tsps_layer, keras_layer = pair(10, 4, dtype=policy)
    actual, expected = tsps_layer(tf.constant(IDS)), keras_layer(tf.constant(IDS))
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(tf.cast(actual, tf.float32), tf.cast(expected, tf.float32))


def test_symbolic_outputs(pair):
    tsps_layer, keras_layer = pair(10, 4, dtype="mixed_float16")
    for shape in ((), (3,), (3, 2)):
        actual, expected = tsps_layer(keras.Input(shape, dtype="int32")), keras_layer(keras.Input(shape, dtype="int32"))
        assert tuple(actual.shape) == tuple(expected.shape)
        assert actual.dtype == expected.dtype
    assert tuple(tsps_layer.compute_output_shape((None, 3))) == tuple(keras_layer.compute_output_shape((None, 3)))


def test_activity_regularizer(pair):
    tsps_layer, keras_layer = pair(10, 4, activity_regularizer=keras.regularizers.L2(0.1))
    tsps_layer(tf.constant(IDS))
    keras_layer(tf.constant(IDS))
    np.testing.assert_allclose(tsps_layer.losses, keras_layer.losses, rtol=1e-6)


def test_get_weights_and_set_weights(pair):
    tsps_layer, keras_layer = pair(10, 4)
    np.testing.assert_array_equal(tsps_layer.get_weights()[0], keras_layer.get_weights()[0])
    assert [w.name.split(":")[0].split("/")[-1] for w in tsps_layer.weights] == ["embeddings"]
    matrix = np.arange(40, dtype=np.float64).reshape(10, 4)
    for layer in (tsps_layer, keras_layer):
        layer.set_weights([matrix])
    np.testing.assert_array_equal(tsps_layer(IDS), keras_layer(IDS))
    for wrong in ([], [matrix, matrix], [matrix[:-1]], [matrix.T]):
        for layer in (tsps_layer, keras_layer):
            with pytest.raises(ValueError, match="weight"):
                layer.set_weights(wrong)
    np.testing.assert_array_equal(tsps_layer.get_weights()[0], matrix)


def test_model_get_weights_and_set_weights(pair):
    tsps_layer, keras_layer = pair(10, 4)
    actual, expected = functional(tsps_layer), functional(keras_layer)
    actual.set_weights(expected.get_weights())
    for a, b in zip(actual.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(actual.predict(IDS, verbose=0), expected.predict(IDS, verbose=0), rtol=1e-6)


def test_embeddings_attribute(pair):
    tsps_layer, keras_layer = pair(10, 4)
    # The variable of Keras 2 has an unknown number of rows, so that set_weights accepts other matrices.
    assert tuple(tsps_layer.embeddings.shape) == (tuple(keras_layer.embeddings.shape) if IS_KERAS_3 else (None, 4))
    np.testing.assert_array_equal(tsps_layer.embeddings.numpy(), np.asarray(keras_layer.embeddings))
    np.testing.assert_array_equal(np.asarray(tsps_layer.embeddings), np.asarray(keras_layer.embeddings))
    np.testing.assert_array_equal(tsps_layer.embeddings[2:4], keras_layer.embeddings[2:4])
    np.testing.assert_allclose(
        tf.norm(tsps_layer.embeddings, axis=1), tf.norm(tf.convert_to_tensor(keras_layer.embeddings), axis=1)
    )
    matrix = np.arange(40, dtype=np.float32).reshape(10, 4)
    tsps_layer.embeddings.assign(matrix)
    np.testing.assert_array_equal(tsps_layer(IDS), matrix[IDS])
    with pytest.raises(ValueError, match=r"\(10, 4\).*\(9, 4\)"):
        tsps_layer.embeddings.assign(matrix[:9])
    with pytest.raises(AttributeError):
        _ = tsps.Embedding(10, 4).embeddings


def test_weights_argument(pair):
    matrix = np.arange(40, dtype=np.float32).reshape(10, 4)
    for weights in (matrix, [matrix], tf.constant(matrix)):
        layer = tsps.Embedding(10, 4, weights=weights)
        np.testing.assert_array_equal(layer(IDS), matrix[IDS])
    with pytest.raises(ValueError, match=r"\(10, 4\).*\(4, 10\)"):
        tsps.Embedding(10, 4, weights=matrix.T)(IDS)


def test_config(pair):
    initializer = keras.initializers.RandomNormal(stddev=0.5, seed=3)
    tsps_layer, keras_layer = pair(10, 4, embeddings_initializer=initializer, mask_zero=True, name="words")
    actual, expected = tsps_layer.get_config(), keras_layer.get_config()
    ignored = {"batch_input_shape", "dtype", "quantization_config"}  # tsps: int64 in Keras 2, no quantization
    assert {k: v for k, v in expected.items() if k not in ignored}.items() <= actual.items()
    copied = tsps.Embedding.from_config(actual)
    assert copied.get_config() == actual
    from_theirs = tsps.Embedding.from_config(expected)
    assert from_theirs.mask_zero
    assert from_theirs.embeddings_initializer.get_config() == keras_layer.embeddings_initializer.get_config()


@pytest.mark.parametrize("dims", [(0, 4), (-1, 4), (10, 0), (10, None), (10.0, 4), (True, 4), ("10", 4)], ids=str)
def test_dimensions_that_are_refused(dims):
    with pytest.raises((ValueError, TypeError)):
        keras.layers.Embedding(*dims) if dims not in ((10.0, 4), (True, 4)) else tsps.Embedding(*dims)
    name = "input_dim" if not isinstance(dims[0], int) or isinstance(dims[0], bool) or dims[0] <= 0 else "output_dim"
    with pytest.raises(ValueError, match=rf"`{name}` must be a positive integer.*Received: {name}="):
        tsps.Embedding(*dims)


def test_missing_and_surplus_arguments():
    with pytest.raises(TypeError, match="output_dim"):
        tsps.Embedding(10)
    with pytest.raises(TypeError, match="input_dim"):
        tsps.Embedding(10, 4, input_dim=10)
    with pytest.raises((TypeError, ValueError), match="no_such"):
        tsps.Embedding(10, 4, no_such=1)


@keras3_only
def test_summary_counts_the_matrix(pair):
    tsps_layer, keras_layer = pair(10, 4)
    assert functional(tsps_layer).count_params() == functional(keras_layer).count_params()
    assert tsps_layer.count_params() == keras_layer.count_params()


def test_sequential_gets_its_ids_unchanged():
    big = 2**24 + 1  # a float32 would be 2**24
    layer = tsps.Embedding(None, 2, input_length=1)
    model = keras.Sequential([layer, keras.layers.Flatten()])
    layer.build((None, 1))
    layer.bindings[0].assign(np.array([big, big - 1]), np.array([[1, 1], [2, 2]], np.float32))
    np.testing.assert_array_equal(model.predict(np.array([[big], [big - 1]]), verbose=0), [[1, 1], [2, 2]])


def test_called_twice_and_untrainable(pair):
    tsps_layer, keras_layer = pair(10, 4)
    ids = tf.constant(IDS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tsps_layer(ids)) + tf.reduce_sum(tsps_layer(ids[:1]) * 2)
    slices = tape.gradient(loss, tsps_layer.trainable_weights)[0]
    dense = np.zeros((10, 4))
    np.add.at(dense, slices.indices.numpy(), slices.values.numpy())
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(keras_layer(ids)) + tf.reduce_sum(keras_layer(ids[:1]) * 2)
    expected = tf.convert_to_tensor(tape.gradient(loss, keras_layer.trainable_weights)[0])
    np.testing.assert_array_equal(dense, expected)
    for layer in (tsps_layer, keras_layer):
        layer.trainable = False
        assert layer.trainable_weights == []
        assert len(layer.weights) == 1
    frozen = tsps.Embedding(10, 4, trainable=False)
    frozen(IDS)
    assert frozen.trainable_weights == []
