"""EmbeddingReduce and EmbeddingCollection give the results of TensorFlow's lookups."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from layer_support import IDS, keras

import tf_sparse_ps as tsps

pytestmark = pytest.mark.quick

COMBINERS = ["sum", "mean", "sqrtn"]
RAGGED = tf.ragged.constant([[1, 2, 2], [], [3], [9, 0]], dtype=tf.int64)
WEIGHTS = tf.ragged.constant([[0.5, 2.0, 1.0], [], [3.0], [0.0, 0.0]])


@pytest.fixture(params=COMBINERS)
def reduce(request):
    layer = tsps.EmbeddingReduce(10, 4, "normal", combiner=request.param)
    layer.build(None)
    return layer


def expected(layer, ids: tf.RaggedTensor, weights: tf.RaggedTensor | None) -> tf.Tensor:
    vectors = tf.nn.embedding_lookup_sparse(
        tf.convert_to_tensor(layer.embeddings),
        ids.to_sparse(),
        None if weights is None else weights.to_sparse(),
        combiner=layer.combiner,
    )
    vectors = tf.where(tf.math.is_nan(vectors), tf.zeros_like(vectors), vectors)  # 0 / 0 counts as 0 here
    return tf.pad(vectors, [[0, ids.nrows() - tf.shape(vectors, tf.int64)[0]], [0, 0]])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_sparse_batch_without_any_id(combiner, weighted):
    reduce = tsps.EmbeddingReduce(None, 4, combiner=combiner)
    ids = tf.ragged.constant([[], []], tf.int64, ragged_rank=1).to_sparse()
    weights = tf.ragged.constant([[], []], tf.float32, ragged_rank=1).to_sparse() if weighted else None
    np.testing.assert_array_equal(reduce(ids, weights=weights), np.zeros((2, 4), np.float32))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_ragged_and_sparse(reduce, weighted):
    weights = WEIGHTS if weighted else None
    want = expected(reduce, RAGGED, weights)
    np.testing.assert_allclose(reduce(RAGGED, weights=weights), want, rtol=1e-5, atol=1e-7)
    sparse_weights = None if weights is None else weights.to_sparse()
    np.testing.assert_allclose(reduce(RAGGED.to_sparse(), weights=sparse_weights), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_dense(reduce, weighted):
    ids = tf.constant(IDS)
    weights = tf.constant([[1.0, 2.0, 0.5], [0.0, 1.0, 3.0]]) if weighted else None
    expected_vectors = expected(
        reduce, tf.RaggedTensor.from_tensor(ids), None if weights is None else tf.RaggedTensor.from_tensor(weights)
    )
    np.testing.assert_allclose(reduce(ids, weights=weights), expected_vectors, rtol=1e-5)
    three = None if weights is None else tf.stack([weights, weights], 1)
    actual = reduce(tf.stack([ids, ids], 1), weights=three)
    np.testing.assert_allclose(actual, tf.stack([expected_vectors, expected_vectors], 1), rtol=1e-5)


def test_ragged_in_two_dimensions(reduce):
    ids = tf.ragged.constant([[[1, 2], [3]], [], [[4, 4]]], dtype=tf.int64)
    actual = reduce(ids)
    assert [len(row) for row in actual.to_list()] == [2, 0, 1]
    np.testing.assert_allclose(actual.flat_values, expected(reduce, ids.values, None), rtol=1e-5)


def test_one_dimension_is_not_reduced(reduce):
    ids, weights = tf.constant([1, 2]), tf.constant([2.0, 3.0])
    rows = tf.gather(tf.convert_to_tensor(reduce.embeddings), ids)
    np.testing.assert_array_equal(reduce(ids), rows)
    scale = weights[:, tf.newaxis] if reduce.combiner == "sum" else 1.0  # as in keras_rs.layers.EmbedReduce
    np.testing.assert_allclose(reduce(ids, weights=weights), rows * scale, rtol=1e-6)


def test_gradients_of_rows_and_weights(reduce):
    matrix = tf.Variable(tf.convert_to_tensor(reduce.embeddings))
    weights = tf.Variable([0.5, 2.0, 1.0, 3.0, 1.0, 4.0])
    ragged = RAGGED.with_values(weights.read_value())
    scale = tf.reshape(tf.range(16, dtype=tf.float32), [4, 4])
    with tf.GradientTape() as tape:
        ragged = RAGGED.with_values(weights * 1.0)
        loss = tf.reduce_sum(reduce(RAGGED, weights=ragged) * scale)
    slices, got_weights = tape.gradient(loss, [*reduce.trainable_weights, weights])
    with tf.GradientTape() as tape:
        ragged = RAGGED.with_values(weights * 1.0)
        w = ragged.to_sparse()
        out = tf.nn.embedding_lookup_sparse(matrix, RAGGED.to_sparse(), w, combiner=reduce.combiner)
        loss = tf.reduce_sum(out * scale)
    want, want_weights = tape.gradient(loss, [matrix, weights])
    dense = np.zeros((10, 4), np.float32)
    np.add.at(dense, slices.indices.numpy(), slices.values.numpy())
    np.testing.assert_allclose(dense, tf.convert_to_tensor(want), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got_weights, want_weights, rtol=1e-4, atol=1e-6)


def test_symbolic_shapes(reduce):
    assert tuple(reduce(keras.Input((3,), dtype="int64")).shape) == (None, 4)
    assert tuple(reduce(keras.Input((2, 3), dtype="int64")).shape) == (None, 2, 4)
    weighted = reduce(keras.Input((3,), dtype="int64"), weights=keras.Input((3,)))
    assert tuple(weighted.shape) == (None, 4)
    model = keras.Model(inputs := keras.Input((3,), dtype="int64"), reduce(inputs))
    np.testing.assert_allclose(model.predict(IDS, verbose=0), reduce(IDS), rtol=1e-6)


def test_reduce_refuses_what_cannot_work():
    with pytest.raises(ValueError, match="combiner"):
        tsps.EmbeddingReduce(10, 4, combiner="max")
    with pytest.raises(ValueError, match="mask_zero"):
        tsps.EmbeddingReduce(10, 4, mask_zero=True)
    layer = tsps.EmbeddingReduce(10, 4)
    with pytest.raises(ValueError, match="weights must be"):
        layer(RAGGED, weights=tf.zeros([4]))
    with pytest.raises(ValueError, match="weights must be"):
        layer(tf.constant(IDS), weights=tf.zeros([2, 2]))


def test_weights_must_have_the_structure_of_the_ids():
    layer = tsps.EmbeddingReduce(10, 4)
    ids = tf.RaggedTensor.from_row_lengths([1, 2, 3, 4], [0, 3, 1])
    same = tf.RaggedTensor.from_row_lengths(tf.ones([4]), tf.constant([0, 3, 1], tf.int32))
    assert layer(ids, weights=same).shape == (3, 4)
    other = tf.RaggedTensor.from_row_lengths(tf.ones([4]), [2, 2, 0])
    outer = [tf.RaggedTensor.from_row_lengths(values, [1, 2]) for values in (ids, ids.with_values(tf.ones([4])))]
    outer.append(tf.RaggedTensor.from_row_lengths(outer[1].values, [2, 1]))
    assert layer(outer[0], weights=outer[1]).shape[0] == 2
    dense = tf.function(lambda ids, weights: layer(ids, weights=weights))
    unknown = dense.get_concrete_function(tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None, None]))
    assert unknown(tf.ones([2, 3], tf.int64), tf.ones([2, 3])).shape == (2, 4)
    for call in (
        lambda: layer(ids, weights=other),
        lambda: tf.function(layer)(ids, weights=other),
        lambda: layer(outer[0], weights=outer[2]),
        lambda: unknown(tf.ones([2, 3], tf.int64), tf.ones([3, 2])),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids and weights|weights and ids"):
            call()


FEATURES = {
    "user": tsps.FeatureConfig(tsps.TableConfig("user", 4, initializer="normal")),
    "history": tsps.FeatureConfig(tsps.TableConfig("item", 3, key_limit=10), combiner="mean"),
    "item": tsps.FeatureConfig(tsps.TableConfig("item", 3, key_limit=10)),
    "tags": tsps.FeatureConfig(tsps.TableConfig("tag", 2), combiner="sum"),
}
INPUTS = {
    "user": tf.constant([7, -5, 2**60]),
    "history": RAGGED[:3],
    "item": tf.constant([1, 2, 9]),
    "tags": RAGGED[:3],
}


def test_collection_shares_tables_and_looks_up_like_single_layers():
    layer = tsps.EmbeddingCollection(FEATURES)
    out = layer(INPUTS)
    assert {name: tuple(value.shape) for name, value in out.items()} == {
        "user": (3, 4),
        "history": (3, 3),
        "item": (3, 3),
        "tags": (3, 2),
    }
    assert [binding.config.name for binding in layer.bindings] == ["user", "item", "tag"]
    items = layer.bindings[1].reader().lookup(np.arange(10))
    np.testing.assert_array_equal(out["item"], items[[1, 2, 9]])
    np.testing.assert_allclose(out["history"][0], items[[1, 2, 2]].mean(0), rtol=1e-6)
    np.testing.assert_array_equal(out["history"][1], np.zeros(3))


def test_collection_gradients_are_counted_per_table():
    layer = tsps.EmbeddingCollection(FEATURES)
    with tf.GradientTape() as tape:
        out = layer(INPUTS)
        loss = sum(tf.reduce_sum(value) for value in out.values())
    grads = tape.gradient(loss, layer.trainable_weights)
    dense = np.zeros((10, 3), np.float32)
    np.add.at(dense, grads[1].indices.numpy(), grads[1].values.numpy())
    want = np.zeros((10, 3), np.float32)
    for key in (1, 2, 9):
        want[key] += 1
    for key in (1, 2, 2):
        want[key] += np.float32(1 / 3)
    want[3] += 1
    np.testing.assert_allclose(dense, want, rtol=1e-6)


def test_collection_trains_in_fit():
    inputs = {name: keras.Input((3,), dtype="int64", name=name) for name in FEATURES}
    out = tsps.EmbeddingCollection(FEATURES)(inputs)
    flat = [keras.layers.Flatten()(value) for value in out.values()]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(flat)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.3)), "mse")
    ids = {name: np.arange(12).reshape(4, 3) % 10 for name in FEATURES}
    history = model.fit(ids, np.array([[0.0], [1], [2], [3]]), epochs=30, verbose=0)
    assert history.history["loss"][-1] < 0.1 * history.history["loss"][0]


def test_collection_refuses_what_cannot_work():
    with pytest.raises(ValueError, match="share the table name 'user'"):
        tsps.EmbeddingCollection(
            {"a": tsps.FeatureConfig(tsps.TableConfig("user", 4)), "b": tsps.FeatureConfig(tsps.TableConfig("user", 5))}
        )
    with pytest.raises(ValueError, match="FeatureConfig"):
        tsps.EmbeddingCollection({"a": tsps.TableConfig("user", 4)})
    with pytest.raises(ValueError, match="at least one"):
        tsps.EmbeddingCollection({})
    layer = tsps.EmbeddingCollection(FEATURES)
    with pytest.raises(ValueError, match=r"expects the features"):
        layer({"user": tf.constant([1])})
    with pytest.raises(ValueError, match="only features with a combiner"):
        layer(INPUTS, weights={"user": tf.zeros([3])})
