"""Refused arguments, and gradients of unusual forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from models import keras

import tf_sparse_ps as tsps
from tf_sparse_ps.reduction import gradients

pytestmark = pytest.mark.keras2_smoke


def test_unknown_arguments_of_apply_gradients_are_refused() -> None:
    variable = tf.Variable([1.0])
    wrapped = tsps.DistributedOptimizer(keras.optimizers.SGD(0.5))
    with pytest.raises(TypeError, match="clip"):
        wrapped.apply_gradients([(tf.constant([1.0]), variable)], clip=1.0)
    for refused in ({"skip_gradients_aggregation": True}, {"experimental_aggregate_gradients": False}):
        with pytest.raises(ValueError, match="always aggregates"):
            wrapped.apply_gradients([(tf.constant([1.0]), variable)], **refused)
    wrapped.apply_gradients([(tf.constant([1.0]), variable)], name="update")
    np.testing.assert_array_equal(variable, [0.5])


def test_a_subclass_of_a_row_optimizer_trains_and_cannot_be_saved() -> None:
    class Warm(tsps.optimizers.SGD):
        def hyper(self, learning_rate: Any, step: Any) -> list[Any]:
            return [0.5 * learning_rate]

    layer = tsps.Embedding(5, 2, embeddings_initializer="zeros")
    layer.build(None)
    wrapped = tsps.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_optimizer=Warm(learning_rate=1.0))
    (anchor,) = layer.trainable_variables
    wrapped.apply_gradients([(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3])), anchor)])
    np.testing.assert_array_equal(layer(tf.constant([3])), [[-0.5, -0.5]])
    with pytest.raises(ValueError, match=r"the row optimizer Warm cannot be saved.*not a subclass"):
        wrapped.get_config()


def test_a_gradient_that_does_not_know_its_shape_has_the_variables() -> None:
    variable = tf.Variable(tf.ones([3, 2]))
    dense_gradients = []

    @tf.custom_gradient
    def op(weight: tf.Tensor) -> Any:
        return tf.identity(weight), lambda upstream: tf.numpy_function(lambda array: array, [upstream], tf.float32)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(op(tf.convert_to_tensor(variable)))
        gradient = tape.gradient(loss, variable)
        assert gradient.shape.rank is None
        dense_gradients.extend(gradients.split([(gradient, variable)])[1])
        wrapped.apply_gradients([(gradient, variable)])

    wrapped = tsps.DistributedOptimizer(keras.optimizers.SGD(0.5))
    wrapped.build([variable])
    step()
    assert dense_gradients[-1].value.shape == [3, 2]
    assert dense_gradients[-1].bytes == 24
    np.testing.assert_array_equal(variable, np.full((3, 2), 0.5))


def test_a_variable_without_a_fixed_shape_is_named() -> None:
    variable = tf.Variable(tf.ones([3, 2]), shape=[None, 2], name="loose")
    (dense,) = gradients.split([(tf.ones([3, 2]), variable)])[1]
    with pytest.raises(ValueError, match=r"variable 'loose.*' has shape \(None, 2\), which is not fixed"):
        _ = dense.bytes
