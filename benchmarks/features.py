"""A layer of many features with an embedding layer for each, which may be any library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks import feature_sizes


class SeparateLayers(keras.layers.Layer):
    """Maps int64[features, batch] to a list of rows, float32[batch, dim] for each feature.

    Features are the first dimension, so that separating them copies nothing. The suite then times the layers and not
    their surroundings.

    Args:
        make: A function that returns the layer of a feature, from its number.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self.separate = [make(feature) for feature in range(feature_sizes.FEATURES)]

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the tables."""
        for layer in self.separate:
            layer.build(shape[1:])
        super().build(shape)

    def call(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Looks up each feature in its layer."""
        return [layer(feature_ids) for layer, feature_ids in zip(self.separate, tf.unstack(ids), strict=True)]
