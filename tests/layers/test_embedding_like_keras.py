"""tsps.Embedding beside keras.layers.Embedding: what is copied is compared in the same test."""

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
    theirs = inspect.signature(keras.layers.Embedding.__init__).parameters
    ours = inspect.signature(tsps.Embedding.__init__).parameters
    names = [name for name, p in theirs.items() if p.kind is not p.VAR_KEYWORD]
    assert list(ours)[: len(names)] == names
    assert all(ours[name].default == theirs[name].default for name in names)
    extra = [name for name, p in ours.items() if p.kind is p.KEYWORD_ONLY]
    assert extra == ["table", "placement", "storage", "cache"]


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
    ours, theirs = pair(10, 4)
    ids = tf.constant(ids)
    np.testing.assert_array_equal(ours(ids), theirs(ids))


def test_ragged(pair):
    ours, theirs = pair(10, 4)
    for ids in (tf.ragged.constant([[1, 2], [], [3]]), tf.ragged.constant([[[1], [2, 3]], []])):
        got, want = ours(ids), theirs(ids)
        assert isinstance(got, tf.RaggedTensor)
        assert got.to_list() == want.to_list()


def test_sparse(pair):
    ours, theirs = pair(10, 4)
    ids = tf.sparse.from_dense([[1, 0, 2], [0, 0, 0]])
    np.testing.assert_allclose(ours(ids), theirs(ids), rtol=1e-6)
    assert ours(ids).shape == (2, 3, 4)


@keras2_only
def test_sparse_output_of_keras_2(pair):
    ours, theirs = pair(10, 4, sparse=True)
    ids = tf.sparse.from_dense([[1, 0, 2], [0, 0, 0]])
    np.testing.assert_array_equal(ours(ids).indices, theirs(ids).indices)
    np.testing.assert_array_equal(ours(ids).values, theirs(ids).values)


def test_mask(pair):
    ours, theirs = pair(10, 4, mask_zero=True)
    np.testing.assert_array_equal(ours.compute_mask(tf.constant(IDS)), theirs.compute_mask(tf.constant(IDS)))
    assert ours.supports_masking
    got = keras.Sequential([ours, keras.layers.LSTM(3, kernel_initializer="ones", recurrent_initializer="ones")])
    want = keras.Sequential([theirs, keras.layers.LSTM(3, kernel_initializer="ones", recurrent_initializer="ones")])
    np.testing.assert_allclose(got(tf.constant(IDS)), want(tf.constant(IDS)), rtol=1e-5)
    ours, theirs = pair(10, 4)
    assert ours.compute_mask(tf.constant(IDS)) is None
    assert theirs.compute_mask(tf.constant(IDS)) is None


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float32"])
def test_mixed_precision(pair, policy):
    ours, theirs = pair(10, 4, dtype=policy)
    got, want = ours(tf.constant(IDS)), theirs(tf.constant(IDS))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(tf.cast(got, tf.float32), tf.cast(want, tf.float32))


def test_symbolic_outputs(pair):
    ours, theirs = pair(10, 4, dtype="mixed_float16")
    for shape in ((), (3,), (3, 2)):
        got, want = ours(keras.Input(shape, dtype="int32")), theirs(keras.Input(shape, dtype="int32"))
        assert tuple(got.shape) == tuple(want.shape)
        assert got.dtype == want.dtype
    assert tuple(ours.compute_output_shape((None, 3))) == tuple(theirs.compute_output_shape((None, 3)))


def test_activity_regularizer(pair):
    ours, theirs = pair(10, 4, activity_regularizer=keras.regularizers.L2(0.1))
    ours(tf.constant(IDS))
    theirs(tf.constant(IDS))
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-6)


def test_get_weights_and_set_weights(pair):
    ours, theirs = pair(10, 4)
    np.testing.assert_array_equal(ours.get_weights()[0], theirs.get_weights()[0])
    assert [w.name.split(":")[0].split("/")[-1] for w in ours.weights] == ["embeddings"]
    matrix = np.arange(40, dtype=np.float64).reshape(10, 4)
    for layer in (ours, theirs):
        layer.set_weights([matrix])
    np.testing.assert_array_equal(ours(IDS), theirs(IDS))
    for wrong in ([], [matrix, matrix], [matrix[:-1]], [matrix.T]):
        for layer in (ours, theirs):
            with pytest.raises(ValueError, match="weight"):
                layer.set_weights(wrong)
    np.testing.assert_array_equal(ours.get_weights()[0], matrix)


def test_model_get_weights_and_set_weights(pair):
    ours, theirs = pair(10, 4)
    got, want = functional(ours), functional(theirs)
    got.set_weights(want.get_weights())
    for a, b in zip(got.get_weights(), want.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(got.predict(IDS, verbose=0), want.predict(IDS, verbose=0), rtol=1e-6)


def test_embeddings_attribute(pair):
    ours, theirs = pair(10, 4)
    # Keras 2 has it of any number of rows, so that set_weights passes them on.
    assert tuple(ours.embeddings.shape) == (tuple(theirs.embeddings.shape) if IS_KERAS_3 else (None, 4))
    np.testing.assert_array_equal(ours.embeddings.numpy(), np.asarray(theirs.embeddings))
    np.testing.assert_array_equal(np.asarray(ours.embeddings), np.asarray(theirs.embeddings))
    np.testing.assert_array_equal(ours.embeddings[2:4], theirs.embeddings[2:4])
    np.testing.assert_allclose(
        tf.norm(ours.embeddings, axis=1), tf.norm(tf.convert_to_tensor(theirs.embeddings), axis=1)
    )
    matrix = np.arange(40, dtype=np.float32).reshape(10, 4)
    ours.embeddings.assign(matrix)
    np.testing.assert_array_equal(ours(IDS), matrix[IDS])
    with pytest.raises(ValueError, match=r"\(10, 4\).*\(9, 4\)"):
        ours.embeddings.assign(matrix[:9])
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
    ours, theirs = pair(10, 4, embeddings_initializer=initializer, mask_zero=True, name="words")
    got, want = ours.get_config(), theirs.get_config()
    ignored = {"batch_input_shape", "dtype", "quantization_config"}  # ours says int64 in Keras 2; refused
    assert {k: v for k, v in want.items() if k not in ignored}.items() <= got.items()
    again = tsps.Embedding.from_config(got)
    assert again.get_config() == got
    from_theirs = tsps.Embedding.from_config(want)
    assert from_theirs.mask_zero
    assert from_theirs.embeddings_initializer.get_config() == theirs.embeddings_initializer.get_config()


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
    ours, theirs = pair(10, 4)
    assert functional(ours).count_params() == functional(theirs).count_params()
    assert ours.count_params() == theirs.count_params()


def test_sequential_gets_its_ids_unchanged():
    big = 2**24 + 1  # as a float32 it would be 2**24
    layer = tsps.Embedding(None, 2, input_length=1)
    model = keras.Sequential([layer, keras.layers.Flatten()])
    layer.build((None, 1))
    layer.bindings[0].assign(np.array([big, big - 1]), np.array([[1, 1], [2, 2]], np.float32))
    np.testing.assert_array_equal(model.predict(np.array([[big], [big - 1]]), verbose=0), [[1, 1], [2, 2]])


def test_called_twice_and_untrainable(pair):
    ours, theirs = pair(10, 4)
    ids = tf.constant(IDS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(ours(ids)) + tf.reduce_sum(ours(ids[:1]) * 2)
    slices = tape.gradient(loss, ours.trainable_weights)[0]
    dense = np.zeros((10, 4))
    np.add.at(dense, slices.indices.numpy(), slices.values.numpy())
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(theirs(ids)) + tf.reduce_sum(theirs(ids[:1]) * 2)
    want = tf.convert_to_tensor(tape.gradient(loss, theirs.trainable_weights)[0])
    np.testing.assert_array_equal(dense, want)
    for layer in (ours, theirs):
        layer.trainable = False
        assert layer.trainable_weights == []
        assert len(layer.weights) == 1
    frozen = tsps.Embedding(10, 4, trainable=False)
    frozen(IDS)
    assert frozen.trainable_weights == []
