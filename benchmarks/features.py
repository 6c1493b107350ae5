"""A layer of many features, with an embedding layer for each: any library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks import feature_sizes


class SeparateLayers(keras.layers.Layer):
    """int64[features, batch] to a list of rows, float32[batch, dim] for each feature.

    Features are the first dimension, so that taking them apart copies nothing: what is timed is layers, not their
    surroundings.

    Args:
        make: called with a feature's name; returns its layer.
    """

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self.separate = [make(name) for name in feature_sizes.NAMES]

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the tables."""
        for layer in self.separate:
            layer.build(shape[1:])
        super().build(shape)

    def call(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Feature by feature."""
        return [layer(one) for layer, one in zip(self.separate, tf.unstack(ids), strict=True)]
