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


class Separate(keras.layers.Layer):
    """One layer of ours per feature, behind the interface of a collection."""

    def __init__(self, names: list[str], dim: int) -> None:
        super().__init__()
        self.parts = {name: tsps.Embedding(None, dim) for name in names}

    def call(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """A lookup for each feature."""
        return {name: self.parts[name](ids) for name, ids in inputs.items()}


def _collection(options: harness.Options) -> list[harness.Result]:
    features, count, dim, rows = 26, 512, 16, 100_000
    names = [f"f{number}" for number in range(features)]
    columns = [harness.zipf_ids(rows, count, batches=8, seed=number) for number in range(features)]
    batches = [{name: tf.constant(column[k]) for name, column in zip(names, columns, strict=True)} for k in range(8)]
    draw = np.random.default_rng(1)
    gradients = [{name: tf.constant(draw.random((count, dim), np.float32)) for name in names} for _ in range(3)]
    next_batch, next_gradients = harness.Cycle(batches), harness.Cycle(gradients)

    together = tsps.EmbeddingCollection({name: tsps.FeatureConfig(tsps.TableConfig(name, dim)) for name in names})
    layers = {"26 separate layers of ours": Separate(names, dim), "collection": together}
    for layer in layers.values():
        layer(batches[0])
    lookups = {name: steps.lookup(layer) for name, layer in layers.items()}
    trains = {name: steps.train_step(layer, steps.ours()) for name, layer in layers.items()}
    sizes = f"{features} features x {count} ids x {dim}"
    peer = "26 separate layers of ours"
    calls = 3 if options.quick else 20
    for train in trains.values():  # all batches' keys are there before the clock runs
        for batch in batches:
            train(batch, gradients[0])
    found = harness.compare(
        "layers",
        f"lookup, {sizes}",
        {name: lambda call=call: call(next_batch()) for name, call in lookups.items()},
        peer=peer,
        options=options,
        calls=calls,
    )
    return found + harness.compare(
        "layers",
        f"lookup + backward + Adagrad, {sizes}",
        {name: lambda call=call: call(next_batch(), next_gradients()) for name, call in trains.items()},
        peer=peer,
        options=options,
        calls=calls,
    )
