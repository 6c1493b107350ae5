"""Subclassed models: Keras 3 first runs them symbolically, in a scope where variables have no values yet."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras2_only

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras


class Model(keras.Model):
    """A model with all layers of tsps. __init__ makes them, and the first call builds them."""

    def __init__(self) -> None:
        super().__init__()
        single = tsps.FeatureConfig(tsps.TableConfig("single", 4))
        bags = tsps.FeatureConfig(tsps.TableConfig("bags", 4), combiner="mean")
        self.collection = tsps.EmbeddingCollection({"single": single, "bags": bags})
        self.embedding = tsps.Embedding(100, 4)
        self.reduce = tsps.EmbeddingReduce(None, 4)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: dict[str, Any]) -> Any:
        """Maps int64[batch] and int64[batch, 3] to float32[batch, 1]."""
        vectors = self.collection(inputs)
        parts = [vectors["single"], vectors["bags"], self.embedding(inputs["single"]), self.reduce(inputs["bags"])]
        return self.dense(tf.concat(parts, axis=-1))


def test_a_subclassed_model_is_built_by_fit_or_by_a_call_without_a_warning() -> None:
    data = {"single": np.arange(64) % 10, "bags": np.arange(64 * 3).reshape(64, 3) % 7}
    for called_first in (True, False):
        model = Model()
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), loss="mse")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            if called_first:
                model({name: tf.constant(ids[:2]) for name, ids in data.items()})
            losses = model.fit(data, np.ones(64), epochs=3, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
        assert len(model.embedding.bindings[0].reader()) == 10


def sequential(layer: Any) -> keras.Sequential:
    return keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])


def test_a_sequential_model_without_an_input_layer_is_built_by_fit() -> None:
    length = {} if _keras.IS_KERAS_3 else {"input_length": 10}
    model = sequential(tsps.Embedding(None, 16, **length))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.05)), loss="mse")
    losses = model.fit(np.arange(640).reshape(64, 10), np.ones(64), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@keras2_only
def test_a_sequential_model_needs_the_length_of_its_inputs_as_with_keras_layer() -> None:
    for layer in (keras.layers.Embedding(640, 16), tsps.Embedding(640, 16), tsps.Embedding(None, 16)):
        with pytest.raises(ValueError, match="last dimension of the inputs to a Dense layer should be defined"):
            sequential(layer)
