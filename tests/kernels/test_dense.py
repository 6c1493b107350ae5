"""Dense gradients as one buffer give the results of TensorFlow's ops."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.reduction import rank_weight

pytestmark = pytest.mark.quick

SHAPES = [(3, 4), (), (0, 5), (70_000,), (1,), (2, 3, 4)]


@pytest.fixture
def tensors() -> list[tf.Tensor]:
    draw = np.random.default_rng(0)
    arrays = [draw.normal(size=shape).astype("float32") for shape in SHAPES]
    arrays[0][1, 2], arrays[0][2, 0], arrays[3][69_999] = np.nan, np.inf, -np.inf
    return [tf.constant(array) for array in arrays]


def flat(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


@pytest.mark.parametrize("weight", [1.0, 0.3, 0.0, float("nan")])
def test_concat_multiplies_as_tensorflow_does(mode, tensors, weight):
    tail = tf.constant([np.nan, 7.0])
    buffer = mode(lambda: _ops.weighted_concat(tensors, tf.constant(weight), tail))()
    expected = tf.concat([rank_weight.weighted(flat(tensors), tf.constant(weight)), tail], 0)
    np.testing.assert_array_equal(buffer, expected)


def test_there_may_be_no_tensors(mode):
    tail = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(mode(lambda: _ops.weighted_concat([], tf.constant(3.0), tail))(), tail)
    assert mode(lambda: _ops.mean_split([], tail, tf.constant(3.0)))() == []


@pytest.mark.parametrize("weights", [1.0, 3.0, 0.0, float("nan"), float("inf")])
def test_split_divides_as_tensorflow_does(mode, tensors, weights):
    sums = tf.concat([flat(tensors), [8.0, 9.0]], 0)  # two sums more than needed
    means = mode(lambda: _ops.mean_split(tensors, sums, tf.constant(weights)))()
    for mean, tensor in zip(means, tensors, strict=True):
        assert mean.shape == tensor.shape
        np.testing.assert_array_equal(mean, rank_weight.mean(tensor, tf.constant(weights)))


def test_results_take_the_memory_of_tensors_that_nobody_needs_only():
    constant = tf.constant([1.0, 2.0])

    @tf.function(autograph=False)
    def split(sums: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        exponential = tf.exp(constant)  # nothing else uses it, except the second call
        means = _ops.mean_split([constant, exponential, exponential + 1.0], sums, tf.constant(2.0))
        return means, tf.identity(exponential)

    for _ in range(2):
        means, exponential = split(tf.range(6.0))
        np.testing.assert_array_equal(tf.stack(means), [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]])
        np.testing.assert_array_equal(constant, [1.0, 2.0])
        np.testing.assert_allclose(exponential, np.exp([1.0, 2.0]), rtol=1e-6)


def test_shapes_are_inferred():
    @tf.function(input_signature=[tf.TensorSpec([2, 3]), tf.TensorSpec([None])])
    def shapes(known: tf.Tensor, unknown: tf.Tensor) -> tf.Tensor:
        weight, tail = tf.constant(1.0), tf.zeros([5])
        assert _ops.weighted_concat([known, known], weight, tail).shape == [17]
        assert _ops.weighted_concat([known, unknown], weight, tail).shape.as_list() == [None]
        mean, unknown_mean = _ops.mean_split([known, unknown], tf.zeros([9]), tf.constant(1.0))
        assert mean.shape == [2, 3]
        assert unknown_mean.shape.as_list() == [None]
        return mean

    shapes(tf.zeros([2, 3]), tf.zeros([3]))


def test_as_many_sums_as_elements(mode):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"at least the 6 elements of the tensors in like. Received: 5"
    ):
        mode(lambda: _ops.mean_split([tf.zeros([2, 3])], tf.zeros([5]), tf.constant(1.0)))()


def test_gradients_are_those_of_tensorflow(mode):
    draw = np.random.default_rng(1)
    tensors = [tf.constant(draw.normal(size=shape).astype("float32")) for shape in [(2, 3), (), (4,)]]
    weight, weights, tail = tf.constant(0.7), tf.constant(1.9), tf.constant([0.4, 0.6])

    def fused() -> list[tf.Tensor]:
        buffer = _ops.weighted_concat(tensors, weight, tail)
        return [*_ops.mean_split([tf.zeros_like(tensor) for tensor in tensors], buffer * buffer, weights), buffer[-2:]]

    def separate() -> list[tf.Tensor]:
        return [*(rank_weight.mean(rank_weight.weighted(tensor, weight) ** 2, weights) for tensor in tensors), tail]

    def gradients(function) -> list[tf.Tensor]:
        sources = [*tensors, weight, weights, tail]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            loss = tf.add_n([tf.reduce_sum(tf.sin(tensor)) for tensor in function()])
        return tape.gradient(loss, sources)

    for actual, expected in zip(mode(lambda: gradients(fused))(), gradients(separate), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
