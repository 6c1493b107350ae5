"""The layers suite: small layers against Keras's, and the gain of a collection over separate layers."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import feature_sizes, features, harness, rules, steps


def run(options: harness.Options) -> list[harness.Result]:
    """Makes two comparisons: one layer with a small batch; 26 features of 512 ids."""
    return _small_layer(options) + _collection(options)


def _small_layer(options: harness.Options) -> list[harness.Result]:
    rows, dim, count = 100_000, 16, 8_192
    next_ids = harness.Cycle([tf.constant(batch) for batch in harness.zipf_ids(rows, count, batches=16)])
    draw = np.random.default_rng(1)
    next_gradients = harness.Cycle([tf.constant(draw.random((count, dim), np.float32) * 1e-3) for _ in range(5)])
    bounded, unbounded = tsps.Embedding(rows, dim), tsps.Embedding(None, dim)
    dense = keras.layers.Embedding(rows, dim)
    layers = {"keras": dense, "ours, bounded": bounded, "ours, unbounded": unbounded}
    for layer in layers.values():
        layer(next_ids())
    lookups = {name: steps.lookup(layer) for name, layer in layers.items()}
    trains = {
        name: steps.train_step(layer, rules.adagrad() if name == "keras" else rules.ours())
        for name, layer in layers.items()
    }
    for name in ("ours, bounded", "ours, unbounded"):
        steps.fill(trains[name], rows, dim)
    sizes = f"{rows:,} x {dim}, {count:,} ids"
    calls = 3 if options.quick else 30
    results = harness.compare(
        "layers",
        f"lookup, {sizes}",
        {name: lambda call=call: call(next_ids()) for name, call in lookups.items()},
        peer="keras",
        options=options,
        calls=calls,
    )
    return results + harness.compare(
        "layers",
        f"lookup + backward + Adagrad, {sizes}",
        {name: lambda call=call: call(next_ids(), next_gradients()) for name, call in trains.items()},
        peer="keras",
        options=options,
        calls=calls,
    )


class Collection(keras.layers.Layer):
    """The same layer as `SeparateLayers`, with one collection for all features."""

    def __init__(self) -> None:
        super().__init__()
        tables = {name: tsps.FeatureConfig(tsps.TableConfig(name, feature_sizes.DIM)) for name in feature_sizes.NAMES}
        self.collection = tsps.EmbeddingCollection(tables)

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the tables."""
        self.collection.build(dict.fromkeys(feature_sizes.NAMES, shape[1:]))

    def call(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Looks up all features at once."""
        rows = self.collection(dict(zip(feature_sizes.NAMES, tf.unstack(ids), strict=True)))
        return [rows[name] for name in feature_sizes.NAMES]


def separate_layers() -> features.SeparateLayers:
    """Returns a layer that has an embedding layer of ours for each feature."""
    return features.SeparateLayers(lambda name: tsps.Embedding(None, feature_sizes.DIM, name=name))


def _collection(options: harness.Options) -> list[harness.Result]:
    many, count, dim = feature_sizes.FEATURES, feature_sizes.IDS, feature_sizes.DIM
    batches = [tf.constant(batch) for batch in harness.feature_ids(many, count, feature_sizes.ROWS, batches=8)]
    gradients = [tf.constant(gradient) for gradient in harness.normal_gradients(many, count, dim)]
    next_batch, next_gradients = harness.Cycle(batches), harness.Cycle(gradients)

    peer = f"{many} separate layers of ours"
    layers = {peer: separate_layers(), "collection": Collection()}
    for layer in layers.values():
        layer.build((many, count))
    lookups = {name: steps.lookup(layer) for name, layer in layers.items()}
    trains = {name: steps.train_step(layer, rules.ours()) for name, layer in layers.items()}
    sizes = f"{many} features x {count} ids x {dim}"
    calls = 3 if options.quick else 50
    for train in trains.values():  # inserts all batches' keys before anything is timed
        for batch in batches:
            train(batch, gradients[0])
    results = harness.compare(
        "layers",
        f"lookup, {sizes}",
        {name: lambda call=call: call(next_batch()) for name, call in lookups.items()},
        peer=peer,
        foreign=(),
        options=options,
        calls=calls,
    )
    return results + harness.compare(
        "layers",
        f"lookup + backward + Adagrad, {sizes}",
        {name: lambda call=call: call(next_batch(), next_gradients()) for name, call in trains.items()},
        peer=peer,
        foreign=(),
        options=options,
        calls=calls,
    )
