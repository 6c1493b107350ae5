"""`NeuMF`: generalised matrix factorisation combined with an MLP (He et al. 2017, section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

import tf_sparse_ps as tsps


class NeuMF(keras.Model):
    """Looks up users and items, each once for the product and once for the MLP: one lookup in four tables.

    As in the paper, the product has the width `factors`, and the tower has the widths 4, 2 and 1 times `factors`, over
    two embeddings of twice the width `factors`. Initial values are those of the authors' code: N(0, 0.01) for
    embeddings, and LeCun-uniform for the last layer.

    Args:
        user_count: the number of users, which are 0 to user_count - 1.
        item_count: the number of items, which are 0 to item_count - 1.
        factors: the number of predictive factors.
        dropout: the dropout rate for the inputs of the tower and of the last layer; 0 in the paper.
        dtype: the type of the tables' rows.
    """

    def __init__(
        self, user_count: int, item_count: int, factors: int = 32, dropout: float = 0.0, dtype: str = "float32"
    ) -> None:
        super().__init__(name="neumf")
        self._dropout = keras.layers.Dropout(dropout)

        def feature(name: str, count: int, dim: int) -> tsps.FeatureConfig:
            normal = keras.initializers.RandomNormal(stddev=0.01)
            return tsps.FeatureConfig(tsps.TableConfig(name, dim, key_limit=count, initializer=normal, dtype=dtype))

        self.embeddings = tsps.EmbeddingCollection(
            {
                "user_product": feature("user_product", user_count, factors),
                "item_product": feature("item_product", item_count, factors),
                "user_mlp": feature("user_mlp", user_count, 2 * factors),
                "item_mlp": feature("item_mlp", item_count, 2 * factors),
            }
        )
        self._tower = keras.Sequential(
            [keras.layers.Dense(width, activation="relu") for width in (4 * factors, 2 * factors, factors)],
            name="tower",
        )
        self._last = keras.layers.Dense(1, kernel_initializer="lecun_uniform", name="prediction")

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """Returns logits, float32[batch, 1]. `inputs`: `user` and `item`, int64[batch]."""
        user, item = inputs["user"], inputs["item"]
        rows = self.embeddings({"user_product": user, "item_product": item, "user_mlp": user, "item_mlp": item})
        product = rows["user_product"] * rows["item_product"]
        pair = tf.concat([rows["user_mlp"], rows["item_mlp"]], axis=1)
        tower = self._tower(self._dropout(pair, training=training))
        return self._last(self._dropout(tf.concat([product, tower], axis=1), training=training))
