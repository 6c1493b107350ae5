"""Layers with rows on a device equal layers without: bags, collections, shared tables, several calls, frozen layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import keras

import tf_sparse_ps as tsps
from tf_sparse_ps.cache.device_store import DeviceStore
from tf_sparse_ps.job.cached_binding import cache_of

ROWS, DIM, BATCH, BATCHES = 300, 4, 8, 30
_random = np.random.default_rng(0)
IDS = np.minimum(_random.zipf(1.3, size=(BATCH * BATCHES, 5)), ROWS) - 1
OTHER_IDS = np.minimum(_random.zipf(1.3, size=(BATCH * BATCHES, 3)), ROWS) - 1
WEIGHTS = _random.uniform(0.2, 1.5, size=IDS.shape).astype(np.float32)
WEIGHTS[::7] = 0
TARGETS = _random.normal(size=(len(IDS), 1)).astype(np.float32)
VALUES = _random.normal(size=(ROWS, DIM)).astype(np.float32)
UNIQUE = max(
    len(np.unique(np.concatenate([IDS[i : i + BATCH].ravel(), OTHER_IDS[i : i + BATCH].ravel()])))
    for i in range(0, len(IDS), BATCH)
)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
}
TOLERANCES = {"sgd": 1e-6, "adagrad": 1e-6, "adam": 2e-5}
FORMS = ("dense", "ragged", "sparse")
COMBINERS = ("sum", "mean", "sqrtn")


def cached(rows: int = 40, policy: str = "admission", **options: Any) -> tsps.DeviceCache:
    return tsps.DeviceCache(rows=rows, policy=policy, **options)


def content(layer: Any, table: int = 0) -> list[np.ndarray[Any, Any]]:
    """Returns keys, rows and slots of a table, in the order of the keys."""
    block = layer.bindings[table].reader().scan().read()
    order = np.argsort(block.keys)
    return [block.keys[order], block.rows[order], *(slot[order] for slot in block.slots)]


def check_close(layer: Any, other: Any, tolerance: float, table: int = 0) -> None:
    for plane, expected in zip(content(layer, table), content(other, table), strict=True):
        np.testing.assert_allclose(plane, expected, rtol=tolerance, atol=tolerance)


def check_equal(layer: Any, other: Any, table: int = 0) -> None:
    for plane, expected in zip(content(layer, table), content(other, table), strict=True):
        np.testing.assert_array_equal(plane, expected)


# --- bags ---


def in_form(form: str, values: np.ndarray[Any, Any]) -> Any:
    """Returns a batch of bags with 0 to 5 items each; dense bags all have the same length."""
    if form == "dense":
        return values
    keeps = np.arange(values.shape[1]) < (np.arange(len(values)) % (values.shape[1] + 1))[:, np.newaxis]
    if form == "ragged":
        return tf.RaggedTensor.from_row_lengths(tf.constant(values[keeps]), keeps.sum(1))
    return tf.SparseTensor(np.argwhere(keeps), tf.constant(values[keeps]), values.shape)


def pooled(form: str, combiner: str, cache: tsps.DeviceCache | None, weighted: bool, optimizer: str) -> tuple[Any, Any]:
    """Trains a layer on bags. Returns it with the variable behind the items' weights, and the loss before each step."""
    keras.utils.set_random_seed(3)
    layer = tsps.EmbeddingReduce(ROWS, DIM, combiner=combiner, cache=cache)
    layer.build(None)
    layer.set_weights([VALUES])
    scale = tf.Variable(1.0)
    trained = tsps.DistributedOptimizer(OPTIMIZERS[optimizer]())

    @tf.function
    def step(ids: Any, weights: Any, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            if weights is not None:  # so that the weights get gradients
                weights = tf.sparse.map_values(tf.multiply, weights, scale) if form == "sparse" else weights * scale
            vectors = layer(ids, weights)
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(vectors, 1, keepdims=True) - targets))
        variables = [*layer.trainable_variables, *([] if weights is None else [scale])]
        gradients = tape.gradient(loss, variables)
        trained.apply_gradients(zip(gradients[:1], layer.trainable_variables, strict=True))
        if weights is not None:
            scale.assign_sub(0.01 * gradients[1])
        return loss

    losses = []
    for start in range(0, len(IDS), BATCH):
        part = slice(start, start + BATCH)
        weights = in_form(form, WEIGHTS[part]) if weighted else None
        losses.append(float(step(in_form(form, IDS[part]), weights, tf.constant(TARGETS[part]))))
    return layer, (np.array(losses), float(scale))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.daily_cases(5)
def test_bags_are_combined_and_trained_as_without_a_cache(form: str, combiner: str, weighted: bool) -> None:
    layer, losses = pooled(form, combiner, cached(), weighted, "adagrad")
    expected, expected_losses = pooled(form, combiner, None, weighted, "adagrad")
    for values, expected_values in zip(losses, expected_losses, strict=True):
        np.testing.assert_allclose(values, expected_values, rtol=2e-5, atol=1e-6)
    check_close(layer, expected, 2e-6)
    statistics = layer.cache_statistics()
    assert statistics["hits"] > 0
    assert statistics["evicted"] > 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.nightly
def test_bags_with_lru_do_not_depend_on_the_capacity(optimizer: str) -> None:
    for weighted in (False, True):
        small, small_losses = pooled("ragged", "sqrtn", cached(UNIQUE, "lru"), weighted, optimizer)
        large, large_losses = pooled("ragged", "sqrtn", cached(ROWS, "lru"), weighted, optimizer)
        np.testing.assert_array_equal(small_losses[0], large_losses[0])
        check_equal(small, large)
        assert small.cache_statistics()["evicted"] > 0


def test_sgd_of_bags_is_that_of_a_cache_of_all_rows() -> None:
    small, _ = pooled("dense", "mean", cached(), True, "sgd")
    large, _ = pooled("dense", "mean", cached(ROWS, "lru"), True, "sgd")
    check_equal(small, large)
    assert small.cache_statistics()["evicted"] > 0


def test_fit_with_bags() -> None:
    def train(cache: tsps.DeviceCache | None) -> tuple[Any, Any, Any]:
        keras.utils.set_random_seed(3)
        ids = keras.Input((5,), dtype="int64")
        layer = tsps.EmbeddingReduce(ROWS, DIM, combiner="mean", cache=cache)
        model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
        layer.set_weights([VALUES])
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
        validation = IDS[: 4 * BATCH], TARGETS[: 4 * BATCH]
        history = model.fit(IDS, TARGETS, BATCH, epochs=2, shuffle=False, verbose=0, validation_data=validation).history
        return layer, history, model.predict(IDS[:20], verbose=0)

    (layer, losses, rows), (expected, expected_losses, expected_rows) = train(cached()), train(None)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(losses[name], expected_losses[name], rtol=2e-5)
    np.testing.assert_allclose(rows, expected_rows, rtol=1e-5, atol=1e-5)
    check_close(layer, expected, 2e-6)


def test_wrong_weights_are_an_error() -> None:
    layer = tsps.EmbeddingReduce(ROWS, DIM, cache=cached())
    ids = tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 2])
    weights = tf.RaggedTensor.from_row_lengths([1.0, 2.0], [1, 1])
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer(ids, weights)
    decreasing = tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 3, 2], validate=False)
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer(decreasing)


def test_a_layer_with_bags_is_made_anew_from_its_configuration() -> None:
    layer = tsps.EmbeddingReduce(ROWS, DIM, combiner="sum", cache=cached(policy="lru"))
    assert type(layer).from_config(layer.get_config()).cache == layer.cache


# --- collections and shared tables ---


def features(cache: tsps.DeviceCache | None) -> dict[str, tsps.FeatureConfig]:
    """Returns three features of a cached table, two of them with a combiner, and one of a table without a cache."""
    initial = keras.initializers.Constant(0.1)
    words = tsps.TableConfig("words", DIM, key_limit=ROWS, cache=cache, initializer=initial)
    places = tsps.TableConfig("places", 3, key_limit=ROWS, cache=cache, initializer=initial)
    plain = tsps.TableConfig("plain", DIM, initializer=initial)
    return {
        "title": tsps.FeatureConfig(words, combiner="mean"),
        "text": tsps.FeatureConfig(words, combiner="sum"),
        "last": tsps.FeatureConfig(words),
        "home": tsps.FeatureConfig(places),
        "plain": tsps.FeatureConfig(plain, combiner="sqrtn"),
    }


def inputs() -> dict[str, np.ndarray[Any, Any]]:
    return {"title": IDS, "text": OTHER_IDS, "last": IDS[:, :2], "home": OTHER_IDS[:, :1], "plain": IDS}


def collection(cache: tsps.DeviceCache | None, optimizer: str, **options: Any) -> tuple[Any, Any]:
    keras.utils.set_random_seed(3)
    layer = tsps.EmbeddingCollection(features(cache))
    shapes = {name: keras.Input((array.shape[1],), dtype="int64", name=name) for name, array in inputs().items()}
    vectors = layer(shapes)
    joined = keras.layers.Concatenate()([keras.layers.Flatten()(vectors[name]) for name in sorted(vectors)])
    model = keras.Model(shapes, keras.layers.Dense(1)(joined))
    model.compile(tsps.DistributedOptimizer(OPTIMIZERS[optimizer]()), "mse", **options)
    history = model.fit(inputs(), TARGETS, BATCH, epochs=2, shuffle=False, verbose=0).history
    return layer, history


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.daily_cases(1)
def test_collections_are_trained_as_without_caches(optimizer: str) -> None:
    (layer, losses), (expected, expected_losses) = collection(cached(), optimizer), collection(None, optimizer)
    np.testing.assert_allclose(losses["loss"], expected_losses["loss"], rtol=2e-5)
    for table in range(3):
        check_close(layer, expected, 2 * TOLERANCES[optimizer], table)
    assert [cache_of(binding) is not None for binding in layer.bindings] == [True, True, False]
    statistics = layer.cache_statistics()
    assert set(statistics) == {"words", "places"}
    for counts in statistics.values():
        assert counts["hits"] > 0
    assert statistics["words"]["steps"] == 2 * BATCHES, "all features of a table must take their rows together"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.daily_cases(1)
def test_collections_with_lru_do_not_depend_on_the_capacity(optimizer: str) -> None:
    (small, small_losses), (large, large_losses) = (
        collection(cached(rows, "lru"), optimizer) for rows in (UNIQUE, ROWS)
    )
    assert small_losses == large_losses
    for table in range(3):
        check_equal(small, large, table)
    assert small.cache_statistics()["words"]["evicted"] > 0


@pytest.mark.nightly
def test_sgd_of_a_collection_is_that_of_caches_of_all_rows() -> None:
    (small, small_losses), (large, large_losses) = collection(cached(), "sgd"), collection(cached(ROWS, "lru"), "sgd")
    assert small_losses == large_losses
    for table in range(3):
        check_equal(small, large, table)


def test_collections_are_made_anew_from_their_configuration() -> None:
    layer = tsps.EmbeddingCollection(features(cached(policy="lru", flush_every=7)))
    again = tsps.EmbeddingCollection.from_config(layer.get_config())
    assert again.get_config()["features"] == layer.get_config()["features"]
    assert again.table_configs()[0].cache == cached(policy="lru", flush_every=7)


def test_two_caches_on_one_table_are_an_error() -> None:
    two = [tsps.FeatureConfig(tsps.TableConfig("words", DIM, cache=cached(rows))) for rows in (10, 20)]
    with pytest.raises(ValueError, match="share the table name 'words' with different configurations"):
        tsps.EmbeddingCollection({"a": two[0], "b": two[1]})
    with pytest.raises(ValueError, match="Embedding: a table has one cache"):
        tsps.Embedding(ROWS, DIM, table=tsps.TableConfig("words", DIM, cache=cached(10)), cache=cached(20))


def test_a_cache_may_be_that_of_the_table() -> None:
    layer = tsps.Embedding(ROWS, DIM, table=tsps.TableConfig("words", DIM, cache=cached(10)))
    assert layer.cache == cached(10)
    assert type(layer).from_config(layer.get_config()).cache == cached(10)
    layer.build(None)
    assert layer.cache_statistics()["steps"] == 0
    with pytest.raises(tsps.errors.InvalidArgumentError, match="has no rows on a device"):
        tsps.Table.create("/dev/shm/none/words", tsps.TableConfig("words", DIM, cache=cached(10)))


def test_tables_of_collections_that_cannot_have_a_cache() -> None:
    sharded = tsps.TableConfig("words", DIM, cache=cached(), placement=tsps.Sharded())
    with pytest.raises(tsps.errors.UnsupportedError, match=r"EmbeddingCollection: .*placement=.*cannot have a cache"):
        tsps.EmbeddingCollection({"a": tsps.FeatureConfig(sharded)})
    plain = tsps.EmbeddingCollection({"a": tsps.FeatureConfig(tsps.TableConfig("words", DIM))})
    with pytest.raises(ValueError, match="has no cache before it is built"):
        plain.cache_statistics()


# --- several calls in a step, and frozen layers ---


def called_twice(cache: tsps.DeviceCache | None, optimizer: str) -> tuple[Any, Any]:
    keras.utils.set_random_seed(3)
    layer = tsps.Embedding(ROWS, DIM, cache=cache)
    ids, other_ids = keras.Input((5,), dtype="int64"), keras.Input((3,), dtype="int64")
    joined = keras.layers.Concatenate(1)([layer(ids), layer(other_ids)])
    model = keras.Model([ids, other_ids], keras.layers.Dense(1)(keras.layers.Flatten()(joined)))
    layer.set_weights([VALUES])
    model.compile(tsps.DistributedOptimizer(OPTIMIZERS[optimizer]()), "mse")
    return layer, model.fit([IDS, OTHER_IDS], TARGETS, BATCH, epochs=2, shuffle=False, verbose=0).history


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.nightly
def test_calls_of_a_step_are_one_take(optimizer: str) -> None:
    (small, small_losses), (large, large_losses) = (
        called_twice(cached(rows, "lru"), optimizer) for rows in (UNIQUE, ROWS)
    )
    assert small_losses == large_losses
    check_equal(small, large)
    plain, plain_losses = called_twice(None, optimizer)
    np.testing.assert_allclose(small_losses["loss"], plain_losses["loss"], rtol=2e-5)
    check_close(small, plain, 2 * TOLERANCES[optimizer])
    if optimizer == "sgd":
        check_equal(small, plain)
    statistics = small.cache_statistics()
    assert statistics["steps"] == 2 * BATCHES
    assert statistics["evicted"] > 0


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.daily_cases(1)
def test_frozen_layers_look_up_and_change_nothing(graph: bool) -> None:
    layer = tsps.Embedding(ROWS, DIM, cache=cached())
    layer.build(None)
    layer.set_weights([VALUES])

    def make() -> Any:
        model = keras.Sequential(
            [keras.Input((5,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse", run_eagerly=not graph)
        return model

    ids, targets = IDS[: 10 * BATCH], TARGETS[: 10 * BATCH]
    make().fit(ids, targets, BATCH, shuffle=False, verbose=0)
    newer, before = layer.cache_statistics()["newer"], layer.cache_statistics()
    assert newer > 0
    layer.trainable = False
    model = make()
    dense = model.layers[-1].get_weights()[0]
    model.fit(ids, targets, BATCH, shuffle=False, verbose=0)
    assert np.any(model.layers[-1].get_weights()[0] != dense), "the other layers must train"
    after = layer.cache_statistics()
    looked_up = after["looked_up"] - before["looked_up"]
    assert looked_up > 0
    assert after["missed"] - before["missed"] < looked_up, "rows on the device must be used"
    for name in ("steps", "entered", "evicted", "written", "flushed", "newer"):
        assert after[name] == before[name], name
    rows = content(layer)
    model.fit(ids, targets, BATCH, shuffle=False, verbose=0)
    for plane, expected in zip(content(layer), rows, strict=True):
        np.testing.assert_array_equal(plane, expected)
    layer.trainable = True
    make().fit(ids, targets, BATCH, shuffle=False, verbose=0)
    assert layer.cache_statistics()["steps"] == before["steps"] + 10
    assert np.any(content(layer)[1] != rows[1])


@pytest.mark.parametrize("cls", [tsps.Embedding, tsps.EmbeddingReduce])
def test_gradients_through_constructs_are_refused_by_name(cls: Any) -> None:
    layer = cls(ROWS, DIM, cache=cached())
    layer.build(None)

    @tf.function
    def gradient(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.cond(tf.reduce_sum(ids) > 0, lambda: tf.reduce_sum(layer(ids)), lambda: 0.0)
        return tape.gradient(loss, layer.trainable_variables)

    with pytest.raises(ValueError, match=r"inside tf.cond cannot be differentiated"):
        gradient(tf.constant([[1, 2]], tf.int64))


def test_keys_of_one_look_up_are_not_merged_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[Any] = []
    merge = DeviceStore.merge

    def noted(self: DeviceStore, keys: tf.Tensor, *arguments: Any) -> Any:
        merged.append(keys)
        return merge(self, keys, *arguments)

    monkeypatch.setattr(DeviceStore, "merge", noted)
    pooled("dense", "mean", cached(), False, "sgd")
    assert not merged
    called_twice(cached(), "sgd")
    assert merged
