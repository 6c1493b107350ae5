"""Gradients equal those of tf.gather and tf.nn.embedding_lookup_sparse on dense copies of the tables."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_ps import _ops

i64 = tf.int64


def dense(slices: tf.IndexedSlices, rows: int) -> np.ndarray:
    assert isinstance(slices, tf.IndexedSlices)
    assert slices.dense_shape is None
    return tf.math.unsorted_segment_sum(slices.values, slices.indices, rows).numpy()


def gradients(loss, variables, *args):
    """Computes gradients outside of `loss`."""
    with tf.GradientTape() as tape:
        value = loss(*args)
    return tape.gradient(value, variables)


def gradients_inside(loss, variables, *args):
    """Computes gradients inside a tf.function around `loss`."""
    return tf.function(lambda *x: gradients(loss, variables, *x))(*args)


taped = pytest.mark.parametrize("differentiate", [gradients, gradients_inside])


@taped
@pytest.mark.parametrize("calls", ["one call", "two calls"])
def test_lookup_gradient_equals_gather(group, mode, differentiate, calls):
    wide, narrow = group.table(4, rows=30), group.table(3, rows=30)
    ids = [tf.constant([[1, 2], [2, 9]], i64), tf.constant([5, 5, 6], i64), tf.constant([9, 1], i64)]

    def total(a, b, c):
        return tf.reduce_sum(a**2) + tf.reduce_sum(b**3) + tf.reduce_sum(tf.sin(c))

    def loss(a, b, c):
        if calls == "one call":
            return total(*group.lookup([a, b, c], [0, 1, 0]).rows)
        rows_0, rows_1 = group.lookup([a, b], [0, 1]).rows
        return total(rows_0, rows_1, group.lookup([c], [0]).rows[0])

    copies = [tf.Variable(table.rows(range(30))) for table in (wide, narrow)]
    expected = gradients(
        lambda a, b, c: total(tf.gather(copies[0], a), tf.gather(copies[1], b), tf.gather(copies[0], c)), copies, *ids
    )
    slices_of_tables = differentiate(mode(loss), group.anchors, *ids)
    for slices, reference in zip(slices_of_tables, expected, strict=True):
        np.testing.assert_allclose(dense(slices, 30), tf.convert_to_tensor(reference), rtol=1e-6)
    # Within a call, each key occurs once.
    assert len(slices_of_tables[1].indices) == 2
    assert len(slices_of_tables[0].indices) == (3 if calls == "one call" else 5)


@taped
def test_a_function_called_twice_gives_both_gradients(group, mode, differentiate):
    table = group.table(4, rows=10)
    total = mode(lambda ids: tf.reduce_sum(group.lookup([ids], [0]).rows[0]))
    slices = differentiate(
        lambda a, b: total(a) + 2 * total(b), table.anchor, tf.constant([1, 1], i64), tf.constant([2, 1], i64)
    )
    expected = np.zeros((10, 4))
    expected[1], expected[2] = 4, 2
    np.testing.assert_array_equal(dense(slices, 10), expected)


@taped
def test_a_feature_that_the_loss_does_not_use_gives_zeros(group, mode, differentiate):
    group.table(4, rows=9)
    ids = tf.constant([1, 2], i64)
    loss = mode(lambda a: tf.reduce_sum(group.lookup([a, a + 2], [0, 0]).rows[1]))
    slices = differentiate(loss, group.anchors, ids)[0]
    np.testing.assert_array_equal(dense(slices, 9)[1:5, 0], [0, 0, 1, 1])


@taped
def test_gathered_rows_have_sparse_gradients_of_their_own(group, mode, differentiate):
    group.table(4, rows=9)
    loss = mode(lambda a: tf.reduce_sum(tf.gather(group.lookup([a], [0]).rows[0], [0, 0, 1])))
    slices = differentiate(loss, group.anchors, tf.constant([3, 4, 5], i64))[0]
    np.testing.assert_array_equal(dense(slices, 9)[3:6, 0], [2, 1, 0])


@taped
def test_tables_without_a_feature_or_ids(group, mode, differentiate):
    group.table(4), group.table(3)
    loss = mode(lambda a: tf.reduce_sum(group.lookup([a], [0]).rows[0]))
    slices_of_tables = differentiate(loss, group.anchors, tf.zeros([0], i64))
    assert slices_of_tables[0].values.shape == [0, 4]
    assert slices_of_tables[1] is None


def test_keras_weights_get_the_gradient(group):
    """A layer's anchor: a Keras weight of shape [0, dim], saved and loaded like any other."""
    table = group.table(4, rows=10)

    class Layer(keras.layers.Layer):
        def build(self, _):
            self.anchor = self.add_weight(shape=(0, 4), initializer="zeros", name="anchor")

        def call(self, ids):
            return _ops.lookup([ids], [table.path], [table.uuid], [tf.convert_to_tensor(self.anchor)], [0]).rows[0]

    inputs = keras.Input((2,), dtype="int64")
    layer = Layer()
    model = keras.Model(inputs, layer(inputs))
    assert tuple(model.output_shape) == (None, 2, 4)
    for run in (model, tf.function(model)):
        slices_of_variables = gradients(
            lambda x, run=run: tf.reduce_sum(run(x)), layer.trainable_variables, tf.constant([[1, 1]], i64)
        )
        raw = [getattr(weight, "value", weight) for weight in layer.trainable_variables]
        if slices_of_variables[0] is None:  # Keras 3 variables wrap TensorFlow's
            slices_of_variables = gradients(lambda x, run=run: tf.reduce_sum(run(x)), raw, tf.constant([[1, 1]], i64))
        np.testing.assert_array_equal(slices_of_variables[0].indices, [1])
        np.testing.assert_array_equal(slices_of_variables[0].values, [[2, 2, 2, 2]])
    assert model.get_weights()[0].shape == (0, 4)
    model.set_weights(model.get_weights())


def test_making_the_gradient_dense_is_an_error(group):
    table = group.table(4, rows=10)
    slices = gradients(lambda x: tf.reduce_sum(group.lookup([x], [0]).rows[0]), table.anchor, tf.constant([1], i64))
    with pytest.raises(ValueError, match="without dense_shape"):
        tf.convert_to_tensor(slices)


# --- pooled ----------------------------------------------------------------------------------------------------------

IDS = [3, 1, 3, 7, 7, 7, 2]
SPLITS = [0, 3, 3, 6, 7]
WEIGHTS = [0.5, 1.0, 2.0, 0.25, 3.0, 1.0, 0.75]


def reference_pooled(params, weights, combiner):
    """tf.nn.embedding_lookup_sparse, with zeros for the empty bag."""
    rows = tf.RaggedTensor.from_row_splits(tf.constant(IDS, i64), SPLITS).to_sparse()
    sparse_weights = None if weights is None else tf.SparseTensor(rows.indices, weights, rows.dense_shape)
    return tf.nn.embedding_lookup_sparse(params, rows, sparse_weights, combiner=combiner)


@taped
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_lookup_equals_embedding_lookup_sparse(group, mode, differentiate, combiner, weighted):
    table = group.table(5, rows=10)
    params = tf.Variable(table.rows(range(10)))
    weights = tf.Variable(WEIGHTS if weighted else [])
    target = tf.constant(np.random.default_rng(3).normal(size=(4, 5)).astype(np.float32))

    def loss(ids, splits, factors):
        pooled = group.pooled([ids], [splits], [factors], [0], [combiner]).pooled[0]
        return tf.reduce_sum((pooled - target) ** 2)

    def reference(factors):
        return tf.reduce_sum((reference_pooled(params, factors if weighted else None, combiner) - target) ** 2)

    ids, splits = tf.constant(IDS, i64), tf.constant(SPLITS, i64)
    body = mode(loss)
    np.testing.assert_allclose(body(ids, splits, weights), reference(weights), rtol=1e-5)
    actual = differentiate(lambda: body(ids, splits, tf.convert_to_tensor(weights)), [table.anchor, weights])
    expected = gradients(lambda: reference(tf.convert_to_tensor(weights)), [params, weights])
    np.testing.assert_allclose(dense(actual[0], 10), tf.convert_to_tensor(expected[0]), rtol=1e-5, atol=1e-6)
    if weighted:
        np.testing.assert_allclose(actual[1], expected[1], rtol=1e-4, atol=1e-5)
    else:
        assert actual[1] is None


@taped
def test_pooled_features_of_several_tables(group, mode, differentiate):
    group.table(4, rows=10), group.table(2, rows=10)
    ids, splits, no_weights = tf.constant([1, 2, 1], i64), tf.constant([0, 2, 3], i64), tf.zeros([0])
    weights = tf.Variable([1.0, 2.0, 4.0])

    def loss():
        result = group.pooled(
            [ids] * 3, [splits] * 3, [no_weights, weights, no_weights], [0, 1, 1], ["sum", "sum", "mean"]
        )
        assert [x.shape.as_list() for x in result.pooled] == [[2, 4], [2, 2], [2, 2]]
        return tf.add_n([tf.reduce_sum(x) for x in result.pooled])

    slices = differentiate(mode(loss), [*group.anchors, weights])
    np.testing.assert_allclose(dense(slices[0], 10)[1:3, 0], [2, 1])
    np.testing.assert_allclose(dense(slices[1], 10)[1:3, 0], [5 + 1.5, 2 + 0.5])
    np.testing.assert_allclose(slices[2], group.tables[1].rows([1, 2, 1]).sum(axis=1), rtol=1e-6)


def weight_grad_ops(graph_function) -> int:
    """Returns the number of ops for the weights' gradient in a function and the functions that it calls."""
    functions = graph_function.graph.as_graph_def().library.function
    nodes = [node for function in functions for node in function.node_def]
    nodes += list(graph_function.graph.as_graph_def().node)
    return sum(node.op == "TspsPooledWeightGrad" for node in nodes)


@pytest.mark.parametrize(
    ("make_weights", "expected"),
    [
        (lambda ids, outer: tf.zeros([0]), 0),
        (lambda ids, outer: tf.constant([1.0, 2.0, 3.0]), 0),
        (lambda ids, outer: tf.ones_like(ids, tf.float32), 0),
        (lambda ids, outer: 1.0 / tf.cast(ids, tf.float32), 0),
        (lambda ids, outer: outer * 2.0, 1),
    ],
)
def test_the_weights_gradient_is_left_out_where_nobody_can_want_it(group, make_weights, expected):
    table = group.table(4, rows=10)

    @tf.function
    def step(ids, outer):
        with tf.GradientTape() as tape:
            pooled = group.pooled([ids], [tf.constant([0, 3], i64)], [make_weights(ids, outer)], [0], ["mean"])
            loss = tf.reduce_sum(pooled.pooled[0])
        return tape.gradient(loss, table.anchor)

    spec = tf.TensorSpec([3], i64), tf.TensorSpec([3])
    assert weight_grad_ops(step.get_concrete_function(*spec)) == expected
    step(tf.constant([1, 2, 3], i64), tf.ones([3]))


def test_eager_tapes_leave_the_weights_gradient_out_too(group, monkeypatch):
    table = group.table(4, rows=10)
    calls = []
    original = _ops.lib.tsps_pooled_weight_grad
    monkeypatch.setattr(_ops.lib, "tsps_pooled_weight_grad", lambda *x, **y: calls.append(1) or original(*x, **y))
    weights = tf.constant([1.0, 2.0, 3.0])
    for sources in ([table.anchor], [table.anchor, weights]):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            pooled = group.pooled([tf.constant([1, 2, 3], i64)], [tf.constant([0, 3], i64)], [weights], [0], ["sum"])
            loss = tf.reduce_sum(pooled.pooled[0])
        slices = tape.gradient(loss, sources)
        assert len(slices[0].indices) == 3
        assert len(calls) == len(sources) - 1
    assert slices[1].shape == [3]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("construct", ["cond", "switch_case", "while_loop", "map_fn", "recompute_grad"])
@pytest.mark.parametrize("pooled", [False, True])
def test_lookups_inside_control_flow_are_refused_by_name(group, nested, construct, pooled):
    table = group.table(4, rows=10)
    ids = tf.constant([1, 2, 1], i64)

    def one(x):
        if pooled:
            return tf.reduce_sum(group.pooled([x], [tf.constant([0, 3], i64)], [tf.zeros([0])], [0], ["sum"]).pooled[0])
        return tf.reduce_sum(group.lookup([x], [0]).rows[0])

    body = tf.function(one) if nested else one

    def loss():
        if construct == "cond":
            return tf.cond(tf.reduce_sum(ids) > 0, lambda: body(ids), lambda: 0.0)
        if construct == "switch_case":
            return tf.switch_case(tf.cast(ids[0], tf.int32), [lambda: 0.0, lambda: body(ids)])
        if construct == "while_loop":
            return tf.while_loop(lambda k, _: k < 3, lambda k, x: (k + 1, x + body(ids + k)), (tf.zeros([], i64), 0.0))[
                1
            ]
        if construct == "recompute_grad":
            return tf.recompute_grad(body)(ids)
        return tf.reduce_sum(tf.map_fn(body, tf.stack([ids, ids]), fn_output_signature=tf.float32))

    assert np.isfinite(tf.function(loss)())
    with pytest.raises(ValueError, match=f"lookup inside .*tf.{construct}.* cannot be differentiated from outside"):
        gradients_inside(loss, table.anchor)

    def taped_inside():
        return tf.cond(
            tf.reduce_sum(ids) > 0, lambda: gradients(body, table.anchor, ids).values, lambda: tf.zeros([0, 4])
        )

    np.testing.assert_array_equal(tf.function(taped_inside)()[:, 0], [2, 1])


def test_pooled_errors(group):
    group.table(4, rows=10)
    ids, none = tf.constant([1, 2, 3], i64), tf.zeros([0])

    def pooled(splits, weights=none):
        return group.pooled([ids], [tf.constant(splits, i64)], [weights], [0], ["sum"])

    for splits in ([0, 2], [1, 3], [0, 2, 1, 3], [0, 4], []):
        with pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
            pooled(splits)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"feature 0 has 3 ids.*Received: 2"):
        pooled([0, 3], tf.ones([2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="combiners"):
        group.pooled([ids], [tf.constant([0, 3], i64)], [none], [0], [])
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="max"):
        group.pooled([ids], [tf.constant([0, 3], i64)], [none], [0], ["max"])


def test_segment_sum_refuses_what_does_not_fit():
    grads, inverse, keys = tf.ones([2, 3]), tf.constant([0, 1]), tf.constant([7, 8], i64)
    np.testing.assert_array_equal(_ops.segment_sum([grads], [inverse], [keys], [0])[0], np.ones((2, 3)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="grads of feature 0"):
        _ops.segment_sum([grads], [tf.constant([0])], [keys], [0])
    with pytest.raises(tf.errors.InvalidArgumentError):
        _ops.segment_sum([grads], [tf.constant([0, 2])], [keys], [0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="one width"):
        _ops.segment_sum([grads, tf.ones([1, 2])], [inverse, tf.constant([0])], [keys], [0, 0])
