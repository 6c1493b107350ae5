"""A table with rows on a device is trained like a table without, for all combinations of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras
from pairwise import covers, pairwise

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

ROWS, DIM, BATCH, BATCHES, WIDTH = 240, 6, 8, 20, 4
_random = np.random.default_rng(0)
IDS = np.minimum(_random.zipf(1.25, size=(BATCH * BATCHES, WIDTH)), ROWS) - 1
WORDS = np.char.add("w", IDS.astype(str))
TARGETS = _random.normal(size=(len(IDS), 1)).astype(np.float32)
VALUES = _random.normal(size=(ROWS, DIM)).astype(np.float32)
BATCH_ROWS = BATCH * WIDTH  # at most, in a batch
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.02),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
}
AHEAD = [0, 1, 2, 4, 8]  # the number of announced batches; 0: none
SETTINGS: dict[str, list[Any]] = {
    "usage": [
        "validation",
        "sequential, repeated",
        "custom loop",
        "subclassed, shuffled",
        "steps per execution",
        "eagerly",
        "several inputs",
        "stopped early",
        "exception",
        "hashing",
        "string lookup",
    ],
    "optimizer": list(OPTIMIZERS),
    "keras": [3, 2],
    "dtype": ["float32", "bfloat16", "float16"],
    "rows": ["a batch", "a quarter", "all"],
    "policy": ["admission", "lru"],
    "layer": ["embedding", "reduce", "collection"],
    "ahead": AHEAD,
}
CASES = pairwise(SETTINGS)
DAILY = 8
ROWS_OF = {"a batch": 2 * BATCH_ROWS, "a quarter": ROWS // 4, "all": ROWS}  # several inputs: two calls in a batch


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


class Subclassed(keras.Model):
    """A subclassed model that equals the other models."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look, self.dense = look, keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.dense(self.look(ids))


def layer_of(case: dict[str, Any], cache: tsps.DeviceCache | None) -> Any:
    # Stochastic rounding depends on the ordinal of the table, in which the compared tables differ.
    config = tsps.TableConfig("t", DIM, key_limit=ROWS, dtype=case["dtype"], rounding="nearest", cache=cache)
    if case["layer"] == "collection":
        features = {"one": tsps.FeatureConfig(config), "all": tsps.FeatureConfig(config, combiner="mean")}
        layer: Any = tsps.EmbeddingCollection(features)
    elif case["layer"] == "reduce":
        layer = tsps.EmbeddingReduce(ROWS, DIM, table=config, combiner="sqrtn")
    else:
        layer = tsps.Embedding(ROWS, DIM, table=config)
    layer.build(None)
    layer.set_weights([VALUES])
    return layer


def model_of(case: dict[str, Any], layer: Any) -> Any:
    usage, look = case["usage"], Look(layer)
    if usage == "sequential, repeated":
        return keras.Sequential([keras.Input((WIDTH,), dtype="int64"), look, keras.layers.Dense(1)])
    if usage == "subclassed, shuffled":
        return Subclassed(look)
    if usage == "several inputs":
        inputs = [keras.Input((WIDTH,), dtype="int64"), keras.Input((2,), dtype="int64")]
        return keras.Model(
            inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([look(tensor) for tensor in inputs]))
        )
    inputs = keras.Input((WIDTH,), dtype="string" if usage in ("hashing", "string lookup") else "int64")
    ids = inputs
    if usage == "hashing":
        ids = keras.layers.Hashing(ROWS)(inputs)
    elif usage == "string lookup":
        ids = keras.layers.StringLookup(vocabulary=sorted(set(WORDS.ravel())), num_oov_indices=1)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(look(ids)))


class Failure(Exception):
    """Raised by a callback."""


class Fails(keras.callbacks.Callback):
    """Fails after some batches."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 6:
            raise Failure


def train(case: dict[str, Any], cache: tsps.DeviceCache | None) -> tuple[Any, Any]:
    """Trains a model. Returns the layer and the model's predictions."""
    keras.utils.set_random_seed(1)
    usage, layer = case["usage"], layer_of(case, cache)
    model = model_of(case, layer)
    optimizer = tsps.DistributedOptimizer(OPTIMIZERS[case["optimizer"]]())
    options = {"steps per execution": {"steps_per_execution": 5}, "eagerly": {"run_eagerly": True}}.get(usage, {})
    model.compile(optimizer, "mse", **options)
    if usage == "subclassed, shuffled":
        model(tf.constant(IDS[:BATCH]))  # builds the model, which lookahead needs
    inputs: Any = (IDS, IDS[:, ::-2].copy()) if usage == "several inputs" else IDS
    if usage in ("hashing", "string lookup"):
        inputs = WORDS
    data = tf.data.Dataset.from_tensor_slices((inputs, TARGETS))
    if usage == "subclassed, shuffled":
        data = data.shuffle(len(IDS), seed=3, reshuffle_each_iteration=False)
    data = data.batch(BATCH)
    if usage == "sequential, repeated":
        data = data.repeat()
    if case["ahead"] and cache is not None:
        data = tsps.lookahead(data, model, batches=case["ahead"])
    if usage == "custom loop":

        @tf.function
        def step(ids: tf.Tensor, targets: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(ids, training=True) - targets))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        for _ in range(2):
            for ids, targets in data:
                step(ids, targets)
    elif usage == "exception":
        with pytest.raises(Failure):
            model.fit(data, verbose=0, callbacks=[Fails()])
        model.fit(data, verbose=0)
    elif usage == "stopped early":
        stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1)
        history = model.fit(data, epochs=9, verbose=0, callbacks=[stop]).history
        assert len(history["loss"]) == 2
    else:
        more: dict[str, Any] = {"validation_data": data.take(3)} if usage == "validation" else {}
        if usage == "sequential, repeated":
            more = {"steps_per_epoch": 2 * BATCHES}
        model.fit(data, epochs=1 if usage == "sequential, repeated" else 2, verbose=0, **more)
    predicted = model.predict(data.take(4), verbose=0)
    return layer, predicted


def content(layer: Any) -> list[np.ndarray[Any, Any]]:
    _, rows, slots = layer.bindings[0].reader().entries(np.arange(ROWS))
    return [rows, *slots]


def statistics(layer: Any) -> dict[str, float]:
    counts = layer.cache_statistics()
    return counts["t"] if isinstance(layer, tsps.EmbeddingCollection) else counts


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id="-".join(str(value) for value in case.values()),
            marks=[] if number < DAILY else pytest.mark.nightly,
        )
        for number, case in enumerate(CASES)
        if case["keras"] == (3 if _keras.IS_KERAS_3 else 2)
    ],
)
@pytest.mark.daily_cases(1)
def test_rows_and_slots_are_those_without_a_cache(case: dict[str, Any]) -> None:
    rows = ROWS_OF[case["rows"]]
    layer, predicted = train(case, tsps.DeviceCache(rows=rows, policy=case["policy"]))
    plain, expected = train(case, None)
    counts = statistics(layer)
    assert counts["hits"] > 0
    assert counts["steps"] > BATCHES
    assert (counts["evicted"] > 0) == (rows != ROWS)
    if case["ahead"]:
        assert counts["taken"] >= BATCHES, "batches must take the rows that were announced for them"
    cached_planes, plain_planes = content(layer), content(plain)
    assert len(cached_planes) == len(plain_planes)
    assert np.mean(cached_planes[0] != VALUES) > 0.2, "training must change the rows"
    tolerance = 2e-5 if case["optimizer"] == "adam" else 1e-6
    for number, (plane, expected_plane) in enumerate(zip(cached_planes, plain_planes, strict=True)):
        if case["dtype"] == "float32":
            np.testing.assert_allclose(
                plane, expected_plane, rtol=4 * tolerance, atol=4 * tolerance, err_msg=str(number)
            )
        else:
            # If the last bits of float32 differ, a row and its gradient may be rounded to a neighbour.
            place = 2.0**-7 if case["dtype"] == "bfloat16" else 2.0**-10
            assert np.mean(np.abs(plane - expected_plane) > 4 * place * (0.1 + np.abs(expected_plane))) < 0.02, number
    np.testing.assert_allclose(predicted, expected, rtol=1e-4 if case["dtype"] == "float32" else 0.2, atol=0.05)
    if case["policy"] == "lru" or case["optimizer"] == "sgd":
        everything, its_predicted = train(case, tsps.DeviceCache(rows=ROWS, policy="lru"))
        for plane, expected_plane in zip(cached_planes, content(everything), strict=True):
            np.testing.assert_array_equal(plane, expected_plane)
        np.testing.assert_array_equal(predicted, its_predicted)


def test_every_two_values_meet() -> None:
    assert covers(SETTINGS, CASES)
    assert len(CASES) <= 60
    assert not covers(SETTINGS, CASES[1:])
    assert pairwise(SETTINGS) == CASES
