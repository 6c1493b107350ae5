"""DLRM (Naumov et al. 2019) and Wide & Deep (Cheng et al. 2016) over tables without a fixed vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

import tf_sparse_ps as tsps


def _mlp(widths: Sequence[int], name: str, *, linear_end: bool = False) -> keras.Sequential:
    layers = [keras.layers.Dense(width, activation="relu") for width in widths]
    if linear_end:
        layers.append(keras.layers.Dense(1))
    return keras.Sequential(layers, name=name)


def _columns(ids: tf.Tensor, names: Sequence[str]) -> dict[str, tf.Tensor]:
    """Splits ids, int64[batch, features], into one int64[batch] for each name."""
    return dict(zip(names, tf.unstack(ids, num=len(names), axis=1), strict=True))


class Dlrm(keras.Model):
    """A bottom MLP for the dense inputs, dot products between all vectors, and a top MLP.

    Args:
        features: the names of the columns of `ids`. Each column has a table.
        dim: the width of an embedding.
        dtype: the type of the tables' rows.
        storage: the storage of the tables.
        placement: the placement of the tables.
        caches: the caches of the tables, by feature. A feature that is missing has no cache.
        bottom: the widths of the hidden layers below the interaction.
        top: the widths of the hidden layers above it.

    Attributes:
        widths: the widths of the rows of an id.
    """

    def __init__(
        self,
        features: Sequence[str],
        dim: int,
        dtype: str = "float32",
        storage: tsps.Tiered | str = "memory",
        placement: tsps.Sharded | str = "replicated",
        caches: Mapping[str, tsps.DeviceCache] | None = None,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (128, 64),
    ) -> None:
        super().__init__(name="dlrm")
        self.widths = (dim,)
        self._features = tuple(features)
        caches = caches or {}
        rows: Any = {"dtype": dtype, "storage": storage, "placement": placement}
        self.embeddings = tsps.EmbeddingCollection(
            {name: tsps.FeatureConfig(tsps.TableConfig(name, dim, cache=caches.get(name), **rows)) for name in features}
        )
        self._bottom = _mlp((*bottom, dim), "bottom")
        self._top = _mlp(top, "top", linear_end=True)

    def call(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns logits, float32[batch, 1]. `inputs`: `dense` float32[batch, k], `ids` int64[batch, features]."""
        dense = self._bottom(inputs["dense"])
        rows = self.embeddings(_columns(inputs["ids"], self._features))
        vectors = tf.stack([dense, *(rows[name] for name in self._features)], axis=1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        # The top MLP gets the whole symmetric matrix, because selecting its lower half costs more than it saves.
        count = len(self._features) + 1
        return self._top(tf.concat([dense, tf.reshape(products, [-1, count * count])], axis=1))


class WideAndDeep(keras.Model):
    """The sum of a linear model of the ids and an MLP over their embeddings and the dense inputs.

    Args:
        features: the names of the columns of `ids`. Each column has a wide table of width 1 and a deep one of width
            `dim`.
        dim: the width of a deep embedding.
        dtype: the type of the tables' rows.
        storage: the storage of the tables.
        placement: the placement of the tables.
        caches: the caches of the tables, by feature. A feature that is missing has no cache.
        hidden: the widths of the hidden layers.

    Attributes:
        widths: the widths of the rows of an id.
    """

    def __init__(
        self,
        features: Sequence[str],
        dim: int,
        dtype: str = "float32",
        storage: tsps.Tiered | str = "memory",
        placement: tsps.Sharded | str = "replicated",
        caches: Mapping[str, tsps.DeviceCache] | None = None,
        hidden: Sequence[int] = (128, 64),
    ) -> None:
        super().__init__(name="wide_deep")
        self.widths = (1, dim)
        self._wide = tuple(f"wide_{name}" for name in features)
        self._deep = tuple(f"deep_{name}" for name in features)
        rows: Any = {"dtype": dtype, "storage": storage, "placement": placement}
        configs: dict[str, tsps.FeatureConfig] = {}
        for name, wide, deep in zip(features, self._wide, self._deep, strict=True):
            rows["cache"] = (caches or {}).get(name)
            configs[wide] = tsps.FeatureConfig(tsps.TableConfig(wide, 1, initializer="zeros", **rows))
            configs[deep] = tsps.FeatureConfig(tsps.TableConfig(deep, dim, **rows))
        self.embeddings = tsps.EmbeddingCollection(configs)
        self._mlp = _mlp(hidden, "deep", linear_end=True)

    def call(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns logits, float32[batch, 1]. `inputs`: `dense` float32[batch, k], `ids` int64[batch, features]."""
        ids = inputs["ids"]
        rows = self.embeddings(_columns(ids, self._wide) | _columns(ids, self._deep))
        deep = self._mlp(tf.concat([inputs["dense"], *(rows[name] for name in self._deep)], axis=1))
        return deep + tf.add_n([rows[name] for name in self._wide])


MODELS = {"dlrm": Dlrm, "wide_deep": WideAndDeep}
