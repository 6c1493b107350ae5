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
    """int64[batch, features] to one int64[batch] for each name."""
    return dict(zip(names, tf.unstack(ids, num=len(names), axis=1), strict=True))


class Dlrm(keras.Model):
    """A bottom MLP for the dense inputs, dot products between all vectors, and a top MLP.

    Args:
        features: names of the columns of `ids`; each has a table of its own.
        dim: width of an embedding.
        dtype: of the tables' rows.
        storage: of the tables.
        placement: of the tables.
        caches: of the tables, by feature; one that is missing has none.
        bottom: widths of the hidden layers below the interaction.
        top: widths of the hidden layers above it.

    Attributes:
        widths: of the rows that each id is looked up for.
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
        """`dense` float32[batch, k] and `ids` int64[batch, features] to logits float32[batch, 1]."""
        dense = self._bottom(inputs["dense"])
        rows = self.embeddings(_columns(inputs["ids"], self._features))
        vectors = tf.stack([dense, *(rows[name] for name in self._features)], axis=1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        # The whole symmetric matrix: picking its lower half costs more, in the backward pass, than it saves.
        count = len(self._features) + 1
        return self._top(tf.concat([dense, tf.reshape(products, [-1, count * count])], axis=1))


class WideAndDeep(keras.Model):
    """A linear model of the ids beside an MLP over their embeddings and the dense inputs.

    Args:
        features: names of the columns of `ids`; each has a wide table of width 1 and a deep one of width `dim`.
        dim: width of a deep embedding.
        dtype: of the tables' rows.
        storage: of the tables.
        placement: of the tables.
        caches: of the tables, by feature; one that is missing has none.
        hidden: widths of the hidden layers.

    Attributes:
        widths: of the rows that each id is looked up for.
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
        """`dense` float32[batch, k] and `ids` int64[batch, features] to logits float32[batch, 1]."""
        ids = inputs["ids"]
        rows = self.embeddings(_columns(ids, self._wide) | _columns(ids, self._deep))
        deep = self._mlp(tf.concat([inputs["dense"], *(rows[name] for name in self._deep)], axis=1))
        return deep + tf.add_n([rows[name] for name in self._wide])


MODELS = {"dlrm": Dlrm, "wide_deep": WideAndDeep}
