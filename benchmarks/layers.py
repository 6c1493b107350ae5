"""The layers suite: small layers against Keras's, and the gain of a collection over separate layers."""

from __future__ import annotations

import gc

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import feature_sizes, features, harness, rules, steps


def run(options: harness.Options) -> list[harness.Result]:
    """Compares one layer with a small batch, and 26 features with few ids, of several numbers and widths."""
    return _small_layer(options) + _many_features(options)


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
    """The same layer as `SeparateLayers`, with one collection for all features.

    Args:
        sizes: The sizes of the tables.
        rows: The number of keys of each table; None: the tables are unbounded.
    """

    def __init__(self, sizes: feature_sizes.Sizes, rows: int | None) -> None:
        super().__init__()
        self.names = [f"f{feature}" for feature in range(feature_sizes.FEATURES)]
        tables = [tsps.TableConfig(name, sizes.dim(f), key_limit=rows) for f, name in enumerate(self.names)]
        self.collection = tsps.EmbeddingCollection({table.name: tsps.FeatureConfig(table) for table in tables})

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the tables."""
        self.collection.build(dict.fromkeys(self.names, shape[1:]))

    def call(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Looks up all features at once."""
        rows = self.collection(dict(zip(self.names, tf.unstack(ids), strict=True)))
        return [rows[name] for name in self.names]


def separate_layers(sizes: feature_sizes.Sizes, rows: int | None) -> features.SeparateLayers:
    """Returns a layer that has an embedding layer of ours for each feature. `rows`: see `Collection`."""
    return features.SeparateLayers(lambda feature: tsps.Embedding(rows, sizes.dim(feature)))


class Floor:
    """The least that TensorFlow needs for all features: one matrix, one gather, one update of its rows.

    Nothing is checked, and no key is searched. The update does not find equal ids, so its result differs from ours.
    """

    def __init__(self, sizes: feature_sizes.Sizes) -> None:
        rows = feature_sizes.FEATURES * feature_sizes.ROWS
        self.dim = sizes.dim(0)
        self.matrix = tf.Variable(tf.zeros([rows, self.dim]))
        self.slots = tf.Variable(tf.ones([rows, self.dim]))
        self.first_rows = tf.range(0, rows, feature_sizes.ROWS, tf.int64)[:, tf.newaxis]

    def lookup(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows of int64[features, ids], float32[ids, dim] for each feature."""
        return tf.unstack(tf.gather(self.matrix, ids + self.first_rows))

    def train(self, ids: tf.Tensor, gradients: tf.Tensor) -> list[tf.Tensor]:
        """Looks up the rows, and updates them by Adagrad."""
        rows = self.lookup(ids)
        with tf.control_dependencies(rows):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=self.matrix.handle,
                accum=self.slots.handle,
                lr=0.01,
                epsilon=1e-7,
                grad=tf.reshape(gradients, [-1, self.dim]),
                indices=tf.reshape(ids + self.first_rows, [-1]),
            )
        return rows


def _many_features(options: harness.Options) -> list[harness.Result]:
    results = []
    first, *_, last = feature_sizes.CASES
    for sizes in (first, last) if options.quick else feature_sizes.CASES:
        results += _case(options, sizes)
        gc.collect()  # removes the layers, and their tables with them
    return results


def _case(options: harness.Options, sizes: feature_sizes.Sizes) -> list[harness.Result]:
    batches = [tf.constant(batch) for batch in sizes.batches(8)]
    gradients = [tf.constant(gradient) for gradient in sizes.gradients()]
    next_batch, next_gradients = harness.Cycle(batches), harness.Cycle(gradients)

    peer = f"{feature_sizes.FEATURES} layers"
    layers = {
        peer: separate_layers(sizes, None),
        f"{peer}, bounded": separate_layers(sizes, feature_sizes.ROWS),
        "collection": Collection(sizes, None),
        "collection, bounded": Collection(sizes, feature_sizes.ROWS),
    }
    for layer in layers.values():
        layer.build((feature_sizes.FEATURES, sizes.ids))
    lookups = {name: steps.lookup(layer) for name, layer in layers.items()}
    trains = {name: steps.train_step(layer, rules.ours()) for name, layer in layers.items()}
    floors = ("one gather",) if len(sizes.dims) == 1 else ()
    for name in floors:
        floor = Floor(sizes)
        lookups[name], trains[name] = tf.function(floor.lookup), tf.function(floor.train)
    calls = 3 if options.quick else 50
    for train in trains.values():  # inserts all batches' keys before anything is timed
        for batch in batches:
            train(batch, gradients[0])
    results = harness.compare(
        "layers",
        f"lookup, {sizes}",
        {name: lambda call=call: call(next_batch()) for name, call in lookups.items()},
        peer=peer,
        foreign=floors,
        options=options,
        calls=calls,
    )
    return results + harness.compare(
        "layers",
        f"lookup + backward + Adagrad, {sizes}",
        {name: lambda call=call: call(next_batch(), next_gradients()) for name, call in trains.items()},
        peer=peer,
        foreign=floors,
        options=options,
        calls=calls,
    )
