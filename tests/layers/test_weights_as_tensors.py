"""A layer's weight used as a tensor is the whole matrix, in graphs and eagerly. Gradients of it reach the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import functional, keras

import tf_sparse_ps as tsps

ROWS, DIM = 30, 4
MATRIX = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype("float32")
IDS, LABELS = np.arange(60).reshape(20, 3) % ROWS, np.arange(20)


class Tied(keras.Model):
    """A model whose output layer reuses its embedding."""

    def __init__(self, layer: Any, weight: Callable[[Any], Any]) -> None:
        super().__init__()
        self.embedding, self.weight = layer, weight

    def call(self, ids: Any) -> Any:
        """Maps int64[batch, 3] to float32[batch, ROWS]."""
        return tf.matmul(tf.reduce_mean(self.embedding(ids), 1), self.weight(self.embedding), transpose_b=True)


@pytest.mark.keras2_smoke
@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("weight", [lambda e: e.embeddings, lambda e: e.weights[0]], ids=["embeddings", "weights"])
def test_tied_weights_train_as_keras(eagerly: bool, weight: Callable[[Any], Any]) -> None:
    trained = []
    for layer, wrap in (
        (keras.layers.Embedding, lambda optimizer: optimizer),
        (tsps.Embedding, tsps.DistributedOptimizer),
    ):
        model = Tied(layer(ROWS, DIM, weights=[MATRIX]), weight)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(wrap(keras.optimizers.SGD(1.0)), loss, run_eagerly=eagerly)
        model.fit(IDS, LABELS, batch_size=20, epochs=3, verbose=0)
        trained.append(np.asarray(model.embedding.get_weights()[0]))
    assert (trained[0] != MATRIX).any(1).all(), "the loss must reach all rows"
    np.testing.assert_allclose(trained[1], trained[0], atol=1e-5)


def test_operations_read_the_matrix() -> None:
    layer = tsps.Embedding(ROWS, DIM, weights=[MATRIX])
    layer(tf.range(2))
    weight = layer.embeddings
    for product in (weight * 2.0, 2.0 * weight, weight + weight):
        np.testing.assert_allclose(product, MATRIX * 2)
    np.testing.assert_allclose(tf.nn.l2_loss(weight), (MATRIX**2).sum() / 2, rtol=1e-5)
    np.testing.assert_array_equal(tf.gather(weight, [1, 29]), MATRIX[[1, 29]])
    np.testing.assert_array_equal(weight[2:4], MATRIX[2:4])
    np.testing.assert_array_equal(tf.function(lambda: tf.identity(weight), autograph=False)(), MATRIX)
    inner = weight if isinstance(weight, tf.Variable) else weight.value
    np.testing.assert_array_equal(tf.reduce_sum(inner, 0), tf.reduce_sum(MATRIX, 0))
    np.testing.assert_array_equal(inner.numpy(), MATRIX)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_a_penalty_over_all_trainable_variables_reaches_the_table(in_graph: bool) -> None:
    layer = tsps.Embedding(ROWS, DIM, weights=[MATRIX])
    model = functional(layer)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))

    def step() -> None:
        with tf.GradientTape() as tape:
            penalty = tf.add_n(
                [tf.nn.l2_loss(tf.convert_to_tensor(variable)) for variable in model.trainable_variables]
            )
            loss = penalty + 0.0 * tf.reduce_sum(model(tf.constant([[1, 2, 3]], tf.int64)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    (tf.function(step) if in_graph else step)()
    np.testing.assert_allclose(layer.get_weights()[0], MATRIX * 0.9, rtol=1e-5)


def test_the_weight_of_an_unbounded_vocabulary_is_no_tensor() -> None:
    layer = tsps.Embedding(None, DIM, name="words")
    layer(tf.range(3))
    for use in (tf.nn.l2_loss, tf.convert_to_tensor, lambda weight: weight * 2.0, tf.function(tf.reduce_sum)):
        with pytest.raises(ValueError, match=r"(?s)'words'.*unbounded.*activity_regularizer"):
            use(layer.trainable_variables[0])


def test_gradients_of_a_bounded_table_become_dense() -> None:
    layer = tsps.Embedding(ROWS, DIM, weights=[MATRIX])
    model = functional(layer)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))

    def gradients() -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.constant([[1, 2, 3]], tf.int64)) ** 2)
        return list(tape.gradient(loss, model.trainable_variables))

    first, second = gradients(), gradients()
    assert tf.convert_to_tensor(first[0]).shape == (ROWS, DIM)
    summed = tf.add_n([first[0], second[0]])
    np.testing.assert_allclose(summed, 2 * tf.convert_to_tensor(first[0]), rtol=1e-6)
    # Dense, all rows would count as rows of the batch. The error explains how to add up gradients.
    with pytest.raises(ValueError, match=r"(?s)tf.IndexedSlices.*tf.concat"):
        optimizer.apply_gradients([(summed, model.trainable_variables[0])])
    parts = [first[0], second[0]]
    together = tf.IndexedSlices(
        tf.concat([gradient.values for gradient in parts], 0), tf.concat([gradient.indices for gradient in parts], 0)
    )
    optimizer.apply_gradients([(together, model.trainable_variables[0])])
    np.testing.assert_allclose(layer.get_weights()[0], MATRIX - 0.1 * np.asarray(summed), rtol=1e-5, atol=1e-6)
