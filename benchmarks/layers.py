"""The layers suite: small layers beside Keras's, and what a collection saves over separate layers."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import harness, steps


def run(options: harness.Options) -> list[harness.Result]:
    """Two comparisons: one layer with a small batch; 26 features of 512 ids."""
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
        name: steps.train_step(layer, steps.adagrad() if name == "keras" else steps.ours())
        for name, layer in layers.items()
    }
    for name in ("ours, bounded", "ours, unbounded"):
        steps.fill(trains[name], rows, dim)
    sizes = f"{rows:,} x {dim}, {count:,} ids"
    calls = 3 if options.quick else 30
    found = harness.compare(
        "layers",
        f"lookup, {sizes}",
        {name: lambda call=call: call(next_ids()) for name, call in lookups.items()},
        peer="keras",
        options=options,
        calls=calls,
    )
    return found + harness.compare(
        "layers",
        f"lookup + backward + Adagrad, {sizes}",
        {name: lambda call=call: call(next_ids(), next_gradients()) for name, call in trains.items()},
        peer="keras",
        options=options,
        calls=calls,
    )


class Features(keras.layers.Layer):
    """A matrix of ids to rows, feature by feature: by a collection, or by a layer for each.

    Features are the first dimension on both sides, so that taking them apart and together copies nothing: what is timed
    is layers, not their surroundings.
    """

    def __init__(self, count: int, dim: int, *, together: bool) -> None:
        super().__init__()
        names = [f"f{number}" for number in range(count)]
        if together:
            tables = {name: tsps.FeatureConfig(tsps.TableConfig(name, dim)) for name in names}
            self.collection = tsps.EmbeddingCollection(tables)
        self.separate = None if together else [tsps.Embedding(None, dim, name=name) for name in names]
        self._names = names

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the tables."""
        for layer in self.separate or ():
            layer.build(shape[1:])
        if self.separate is None:
            self.collection.build(dict.fromkeys(self._names, shape[1:]))

    def call(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """int64[features, batch] to one float32[batch, dim] for each feature."""
        of_each = tf.unstack(ids)
        if self.separate is None:
            found = self.collection(dict(zip(self._names, of_each, strict=True)))
            return [found[name] for name in self._names]
        return [layer(one) for layer, one in zip(self.separate, of_each, strict=True)]


def _collection(options: harness.Options) -> list[harness.Result]:
    features, count, dim, rows = 26, 512, 16, 100_000
    columns = [harness.zipf_ids(rows, count, batches=8, seed=number) for number in range(features)]
    batches = [tf.constant(np.stack([column[k] for column in columns])) for k in range(8)]
    draw = np.random.default_rng(1)
    gradients = [tf.constant(draw.random((features, count, dim), np.float32) * 1e-3) for _ in range(3)]
    next_batch, next_gradients = harness.Cycle(batches), harness.Cycle(gradients)

    peer = f"{features} separate layers of ours"
    layers = {
        peer: Features(features, dim, together=False),
        "collection": Features(features, dim, together=True),
    }
    for layer in layers.values():
        layer.build((features, count))
    lookups = {name: steps.lookup(layer) for name, layer in layers.items()}
    trains = {name: steps.train_step(layer, steps.ours()) for name, layer in layers.items()}
    sizes = f"{features} features x {count} ids x {dim}"
    calls = 3 if options.quick else 50
    for train in trains.values():  # all batches' keys are there before the clock runs
        for batch in batches:
            train(batch, gradients[0])
    found = harness.compare(
        "layers",
        f"lookup, {sizes}",
        {name: lambda call=call: call(next_batch()) for name, call in lookups.items()},
        peer=peer,
        foreign=(),
        options=options,
        calls=calls,
    )
    return found + harness.compare(
        "layers",
        f"lookup + backward + Adagrad, {sizes}",
        {name: lambda call=call: call(next_batch(), next_gradients()) for name, call in trains.items()},
        peer=peer,
        foreign=(),
        options=options,
        calls=calls,
    )
