"""Gradients of tables that the user made: repeated keys are added up, or refused where nothing adds them up."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat._keras import keras
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient


def lookup_op(indices: tf.Tensor) -> tf.Operation:
    op = indices.op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op


@pytest.mark.parametrize("which", ["keys", "inverses", "keys twice"])
def test_indices_out_of_a_lookup(which):
    layer = tsps.Embedding(None, 2, embeddings_initializer="zeros")
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(1.0))
    unique = []

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        (slices,) = tape.gradient(loss, layer.trainable_variables)
        op = lookup_op(slices.indices)
        indices = {
            "keys": op.outputs[1],  # the outputs for one feature and one table: rows, keys, inverses
            "inverses": op.outputs[2],
            "keys twice": tf.tile(op.outputs[1], [2]),
        }[which]
        handmade = tf.IndexedSlices(tf.ones([tf.size(indices), 2]), tf.identity(indices))
        unique.append(SparseGradient.of([handmade], 2).unique)
        optimizer.apply_gradients([(handmade, layer.trainable_variables[0])])

    step(tf.constant([5, 7, 5, 5], tf.int64))
    keys, counts = {"keys": ([5, 7], 1), "inverses": ([0, 1], [[3], [1]]), "keys twice": ([5, 7], 2)}[which]
    assert unique[-1] == (which == "keys")
    table = layer.trainable_variables[0].tsps_binding.reader()
    np.testing.assert_array_equal(np.sort(table.keys()), keys)
    np.testing.assert_array_equal(table.lookup(keys), np.full((2, 2), -1.0) * counts)
    assert table.verify().ok
