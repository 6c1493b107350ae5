"""Trains tables with rows on several logical CPU devices, under MirroredStrategy, and without a cache.

Arguments: a folder for results, and a JSON list of cases (`test_cached_devices.py`). The program writes NAME.npz for
each case.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 4)

import numpy as np  # noqa: E402
from cached_batches import BATCH, DIM, IDS, ROWS, TARGETS, VALUES, WIDTH  # noqa: E402

import tf_sparse_ps as tsps  # noqa: E402
from tf_sparse_ps import _ops  # noqa: E402

keras = tf.keras
OPTIMIZERS = {
    "sgd": lambda **clip: keras.optimizers.SGD(0.02, **clip),
    "adagrad": lambda **clip: keras.optimizers.Adagrad(0.05, **clip),
    "adam": lambda **clip: keras.optimizers.Adam(0.01, **clip),
}


class Look(keras.layers.Layer):
    """Looks up ids[batch, n] with any of the layers, and returns one vector for each row of ids."""

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer = layer

    def call(self, ids: Any) -> Any:
        if isinstance(self.layer, tsps.EmbeddingCollection):
            vectors = self.layer({"one": ids[:, 0], "all": ids})
            return tf.concat([vectors["one"], vectors["all"]], 1)
        rows = self.layer(ids)
        return rows if isinstance(self.layer, tsps.EmbeddingReduce) else tf.reshape(rows, [-1, ids.shape[1] * DIM])

    def compute_output_shape(self, shape: Any) -> Any:
        of = {tsps.EmbeddingCollection: 2, tsps.EmbeddingReduce: 1}
        return (shape[0], DIM * of.get(type(self.layer), shape[1]))


def layer_of(case: dict[str, Any], cache: tsps.DeviceCache | None) -> Any:
    config = tsps.TableConfig("t", DIM, key_limit=ROWS, dtype=case["dtype"], rounding="nearest", cache=cache)
    if case["layer"] == "reduce":
        layer: Any = tsps.EmbeddingReduce(ROWS, DIM, table=config, combiner="sum")
    elif case["layer"] == "collection":
        features = {"one": tsps.FeatureConfig(config), "all": tsps.FeatureConfig(config, combiner="mean")}
        layer = tsps.EmbeddingCollection(features)
    else:
        layer = tsps.Embedding(ROWS, DIM, table=config)
    layer.build(None)
    layer.set_weights([VALUES])
    return layer


def train(case: dict[str, Any], cache: tsps.DeviceCache | None) -> dict[str, Any]:
    """Trains for two epochs. Returns the host's rows and slots, predictions, and the statistics of the cache."""
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{d + 1}" for d in range(case["devices"])])
    with strategy.scope():
        layer = layer_of(case, cache)
        inputs = keras.Input((WIDTH,), dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1)(Look(layer)(inputs)))
        optimizer = tsps.DistributedOptimizer(
            OPTIMIZERS[case["optimizer"]](**dict([case["clip"]] if case["clip"] else [])),
            sparse_reduction=case["reduction"],
        )
        if case["usage"] == "fit":
            model.compile(optimizer, "mse")
    data = tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(BATCH)
    if cache is not None and case["ahead"]:
        data = tsps.lookahead(data, model, batches=case["ahead"])
    if case["usage"] == "fit":
        model.fit(data, epochs=2, verbose=0)
    else:
        loop(strategy, model, optimizer, data, graph=case["usage"] == "loop")
    results: dict[str, Any] = {}
    if cache is not None:
        statistics = layer.cache_statistics()
        results |= {f"cache_{name}": np.array(value) for name, value in statistics.get("t", statistics).items()}
        for d, store in enumerate(layer.bindings[0].cache.stores):
            results[f"held{d}"] = _ops.cache_newer(store.number).keys.numpy()
    results["evaluated"] = np.asarray(model(tf.constant(IDS[:20])))
    _, rows, slots = layer.bindings[0].reader().entries(np.arange(ROWS))
    return results | {f"plane{p}": plane for p, plane in enumerate([rows, *slots])}


def loop(strategy: Any, model: Any, optimizer: Any, data: tf.data.Dataset, *, graph: bool) -> None:
    """Trains in a custom training loop."""

    def replica_step(ids: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss((model(ids, training=True)[:, 0] - targets[:, 0]) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def step(ids: Any, targets: Any) -> None:
        strategy.run(replica_step, args=(ids, targets))

    run_step = tf.function(step) if graph else step
    for _ in range(2):
        for ids, targets in strategy.experimental_distribute_dataset(data):
            run_step(ids, targets)


def main() -> None:
    """Trains each case with its cache, with a cache that holds all rows, and without a cache."""
    folder = Path(sys.argv[1])
    for case in json.loads(sys.argv[2]):
        cache = tsps.DeviceCache(rows=case["rows"], policy=case["policy"], flush_every=case["flush_every"])
        np.savez(folder / f"{case['name']}-cached.npz", **train(case, cache))
        np.savez(folder / f"{case['name']}-all.npz", **train(case, tsps.DeviceCache(rows=ROWS, policy="lru")))
        np.savez(folder / f"{case['name']}-plain.npz", **train(case, None))


if __name__ == "__main__":
    main()
