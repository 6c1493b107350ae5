"""One rank of the test of what users do with sharded tables, on several nodes. It asserts all results itself.

Arguments: "all", or the names of scenarios, separated by commas; the folder for results.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.errors import UnsupportedError

keras = tf.keras
DIM, KEYS = 4, 40
START = keras.initializers.Constant(0.5)  # the same for all tables, although their salts differ
EITHER = ("replicated", Sharded())


def data(batches: int, seed: int, rows: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids[batches * rows, 3] and targets of this rank."""
    random = np.random.default_rng([seed, this_rank.rank()])
    x = random.integers(0, KEYS, (batches * rows, 3))
    return x, random.normal(size=(batches * rows, 1)).astype(np.float32)


def dataset(batches: int, seed: int, rows: int = 6) -> tf.data.Dataset:
    """Returns the same data in batches."""
    return tf.data.Dataset.from_tensor_slices(data(batches, seed, rows)).batch(rows)


def config(name: str, placement: Any) -> tsps.TableConfig:
    """Returns a table that begins with the same rows as all others."""
    return tsps.TableConfig(name, DIM, initializer=START, placement=placement)


def rows_of(layer: Any) -> np.ndarray:
    """Returns all rows of a layer, by a lookup of all ranks."""
    return np.asarray(layer(tf.range(KEYS, dtype=tf.int64)))


def tables_of(layer: Any) -> list[tsps.TableConfig]:
    """Returns the tables of a layer."""
    return layer.table_configs() if hasattr(layer, "table_configs") else []


def same(value: Any) -> None:
    """Asserts that all ranks have an equal value."""
    everyone = tsps.collectives.current().allgather_object(np.asarray(value).tolist(), "test.same")
    assert all(value_of_rank == everyone[0] for value_of_rank in everyone), everyone


def equal(actual: Any, expected: Any) -> None:
    """Asserts that two lists of arrays have the same bits."""
    for actual_array, expected_array in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(actual_array, expected_array)


def dense() -> Any:
    """Returns the last layer of models that begin with the same weights."""
    return keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.05))


# --- layers ---


def big_model(placement: Any, *, run_eagerly: bool = False, steps_per_execution: int = 1) -> tuple[Any, list[Any]]:
    """Returns a model with all layers, one called twice and one frozen, and plain tables; and its layers to compare."""
    options: dict[str, Any] = {"placement": placement}
    ids = keras.Input((3,), dtype="int64")
    masked = tsps.Embedding(KEYS, DIM, START, mask_zero=True, **options)
    twice = tsps.Embedding(None, DIM, START, **options)
    frozen = tsps.Embedding(KEYS, DIM, START, trainable=False, **options)
    bag = tsps.EmbeddingReduce(None, DIM, START, combiner="sqrtn", **options)
    tables = [config("shared", placement), config("here", "replicated"), config("narrow", placement)]
    features = {
        "a": tsps.FeatureConfig(tables[0]),
        "b": tsps.FeatureConfig(tables[0], combiner="sum"),
        "c": tsps.FeatureConfig(tables[1], combiner="mean"),
        "d": tsps.FeatureConfig(tables[2]),
    }
    many = tsps.EmbeddingCollection(features)
    fields = many(dict.fromkeys("abcd", ids))
    flat = [keras.layers.Flatten()(rows) for rows in (twice(ids), twice(ids[:, ::-1]), frozen(ids), bag(ids))]
    flat += [keras.layers.Flatten()(fields[name]) for name in "abcd"]
    outputs = dense()(keras.layers.Concatenate()([*flat, keras.layers.GlobalAveragePooling1D()(masked(ids))]))
    model = keras.Model(ids, outputs)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1, clipvalue=0.5))
    model.compile(optimizer, "mse", run_eagerly=run_eagerly, steps_per_execution=steps_per_execution)
    return model, [masked, twice, frozen, bag]


@functools.cache
def fitted(placement: Any, **options: Any) -> list[np.ndarray]:
    """Returns losses of training and validation, predictions, and rows."""
    model, layers = big_model(placement, **options)
    history = model.fit(dataset(4, 1), epochs=2, shuffle=False, verbose=0, validation_data=dataset(1, 2))
    results = [np.array(history.history[name]) for name in ("loss", "val_loss")]
    results += [model.predict(dataset(2, 3), verbose=0), np.array(model.evaluate(dataset(1, 3), verbose=0))]
    results += [rows_of(layer) for layer in layers]
    return results


def all_layers_train_as_replicated_ones() -> None:
    expected, actual = (fitted(placement) for placement in EITHER)
    equal(actual, expected)
    assert all(np.isfinite(array).all() for array in actual)
    assert (actual[5] != 0.5).any()
    np.testing.assert_array_equal(actual[6], np.full((KEYS, DIM), 0.5, np.float32))  # frozen


def several_steps_at_once_and_eager_ones_give_the_same() -> None:
    expected = fitted(Sharded())
    equal(fitted(Sharded(), steps_per_execution=2), expected)
    eager = fitted(Sharded(), run_eagerly=True)
    for array, expected_array in zip(eager, expected, strict=True):
        np.testing.assert_allclose(array, expected_array, rtol=1e-5, atol=1e-6)


def ragged_and_sparse_ids() -> None:
    spread = tsps.Embedding(KEYS, DIM, "uniform", placement=Sharded())
    bag = tsps.EmbeddingReduce(None, DIM, "uniform", combiner="sum", placement=Sharded())
    lists = [[this_rank.rank(), 7], [], [3, 9, 9][: this_rank.rank() + 1]]
    ragged = tf.ragged.constant(lists, dtype=tf.int64)
    sparse = ragged.to_sparse()
    for look in (spread, tf.function(spread)):
        rows = look(tf.constant([key for row in lists for key in row], tf.int64)).numpy()
        np.testing.assert_array_equal(look(ragged).flat_values, rows)
        assert look(sparse).shape == (3, ragged.bounding_shape()[1], DIM)
    for look in (bag, tf.function(bag)):
        np.testing.assert_allclose(look(ragged), look(sparse), rtol=1e-6)
        np.testing.assert_array_equal(look(ragged)[1], np.zeros(DIM))
    same(rows_of(spread))
    nothing = tf.zeros([0, 2], tf.int64) if this_rank.rank() == 1 else tf.ones([4, 2], tf.int64)
    assert spread(nothing).shape == (len(nothing), 2, DIM)


def a_narrow_pull_rounds_all_rows_alike() -> None:
    narrow = tsps.Embedding(KEYS, DIM, "uniform", placement=Sharded(wire="bfloat16"))
    rows = rows_of(narrow)
    same(rows)
    np.testing.assert_array_equal(rows, tf.cast(tf.cast(rows, tf.bfloat16), tf.float32))


def a_copy_of_a_model_has_shards_of_its_own() -> None:
    model, _ = big_model(Sharded())
    copy = keras.models.clone_model(model)
    placed = [
        sorted(f"{table.name} {table.placement}" for layer in one_model.layers for table in tables_of(layer))
        for one_model in (model, copy)
    ]
    assert placed[0] == placed[1]
    assert sum("Sharded" in one_model for one_model in placed[1]) == 6
    copy.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = data(1, 5)[0]
    before = model.predict(x, verbose=0)
    copy.fit(dataset(2, 5), verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), before)


def rows_are_erased_on_all_nodes() -> None:
    """Rows of replicated and sharded tables are erased, and different ids of ranks are refused."""
    for placement in EITHER:
        layer = tsps.Embedding(None, DIM, START, placement=placement)
        inputs = keras.Input((3,), dtype="int64")
        model = keras.Model(inputs, dense()(keras.layers.Flatten()(layer(inputs))))
        model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        model.fit(dataset(4, 6), verbose=0)
        trained = rows_of(layer)
        gone = np.arange(0, KEYS, 3)
        layer.erase(gone)
        expected = trained.copy()
        expected[gone] = 0.5
        np.testing.assert_array_equal(rows_of(layer), expected)
        with pytest.raises(ValueError, match=r"ids: rank 0 has int64\[1\], checksum"):
            layer.erase([1 + this_rank.rank()])
        np.testing.assert_array_equal(rows_of(layer), expected)
        model.fit(dataset(2, 7), verbose=0)
        same(rows_of(layer))


# --- graphs ---


def look_ups_in_control_flow() -> None:
    """Branches and loops that all ranks take in the same way, with several lookups of the same and of other tables."""
    table_a, table_b = (tsps.Embedding(None, DIM, "uniform", placement=Sharded()) for _ in range(2))
    table_a.build(None), table_b.build(None)

    @tf.function
    def walk(ids: tf.Tensor, flag: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        total = tf.cond(
            flag, lambda: tf.reduce_sum(table_a(ids)), lambda: tf.reduce_sum(table_b(ids)) + tf.reduce_sum(table_a(ids))
        )
        for i in tf.range(times):
            total += tf.reduce_sum(table_a(ids + i)) - tf.reduce_sum(table_b(ids + i))
        sums = [tf.reduce_sum(table_a(ids + n)) for n in range(3)]
        return total + tf.add_n(sums) + tf.reduce_sum(inner(ids))

    @tf.function
    def inner(ids: tf.Tensor) -> tf.Tensor:
        return table_a(ids)

    ids = tf.range(5, dtype=tf.int64)
    for flag, times in ((True, 3), (False, 5), (True, 0)):
        total_found = walk(ids, tf.constant(flag), tf.constant(times, tf.int64))
        rows = [np.asarray(layer(tf.range(20, dtype=tf.int64))).astype(np.float64) for layer in (table_a, table_b)]
        total = rows[0][:5].sum() if flag else rows[1][:5].sum() + rows[0][:5].sum()
        for i in range(times):
            total += rows[0][i : i + 5].sum() - rows[1][i : i + 5].sum()
        total += sum(rows[0][n : n + 5].sum() for n in range(3)) + rows[0][:5].sum()
        np.testing.assert_allclose(total_found, total, rtol=1e-4)
    assert inner(ids).shape == (5, DIM)  # another graph has traced this function, too


def a_function_that_is_traced_anew_and_another_one() -> None:
    layer = tsps.Embedding(None, DIM, "uniform", placement=Sharded())
    layer.build(None)
    look = tf.function(layer)
    expected = rows_of(layer)
    for n in (1, 2, 3 + this_rank.rank()):  # ranks trace at different times
        np.testing.assert_array_equal(look(np.arange(n)), expected[:n])
    again = tf.function(lambda ids: layer(ids) + layer(ids))
    np.testing.assert_array_equal(again(np.arange(4)), 2 * expected[:4])


def many_look_ups_in_flight() -> None:
    """Lookups of six tables, in graphs with other preceding ops on each rank."""
    rank, layers = this_rank.rank(), [tsps.Embedding(None, DIM, "uniform", placement=Sharded()) for _ in range(6)]
    for layer in layers:
        layer.build(None)

    @tf.function
    def look(ids: tf.Tensor) -> list[tf.Tensor]:
        delayed = ids + tf.cast(tf.reduce_sum(tf.linalg.matmul(*[tf.zeros([300, 300])] * 2)), tf.int64)
        order = [delayed if n % 3 == rank % 3 else ids for n in range(6)]
        return [layer(table_ids) for layer, table_ids in zip(layers, order, strict=True)]

    ids = tf.constant(np.random.default_rng(rank).integers(0, 1000, 200))
    expected = [np.asarray(layer(ids)) for layer in layers]
    for _ in range(20):
        equal(look(ids), expected)


def looking_ahead_changes_no_number() -> None:
    """A sharded table that is mostly on disk. Ranks announce keys of their own batches, whichever node owns them."""
    rows_found = []
    for ahead in (False, True):
        storage = tsps.Tiered(Path(sys.argv[2]) / "disk", memory=1_840_000)  # 1.5 MiB are buffers
        layer = tsps.Embedding(None, DIM, START, placement=Sharded(), storage=storage)
        model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), dense()])
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
        keys = np.arange(7_500, dtype=np.int64)
        layer.bindings[0].assign(keys, np.full((len(keys), DIM), 0.25, np.float32))
        random = np.random.default_rng(this_rank.rank())
        x, y = random.integers(0, len(keys), (640, 3)), random.normal(size=(640, 1)).astype(np.float32)
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
        model.fit(tsps.lookahead(batches, model, batches=3) if ahead else batches, epochs=2, verbose=0)
        assert layer.bindings[0].reader().stats()["rows_on_disk"] > 500
        rows_found.append(np.asarray(layer(keys)))
    np.testing.assert_array_equal(*rows_found)
    assert (rows_found[0] != 0.25).mean() > 0.2


# --- ranks that differ ---


def different_numbers_of_validation_batches() -> None:
    """Ranks with fewer batches get empty ones. Metrics and predictions are those of the rank's own batches."""
    losses = []
    for placement in EITHER:
        model, _ = big_model(placement)
        own_batches = dataset(1 + this_rank.rank(), 8, rows=5)
        validation = tsps.callbacks.EqualSteps.for_evaluation(own_batches)
        same(int(validation.cardinality()))
        history = model.fit(dataset(2, 7), epochs=2, verbose=0, validation_data=validation)
        predicted = model.predict(validation, verbose=0)
        assert len(predicted) == 5 * (1 + this_rank.rank())
        losses.append([*history.history["val_loss"], model.evaluate(validation, verbose=0), *predicted.ravel()])
        if placement == "replicated":  # here, ranks need not act together
            np.testing.assert_allclose(model.evaluate(own_batches, verbose=0), losses[-1][2], rtol=1e-6)
    equal(losses[:1], losses[1:])


def different_numbers_of_batches() -> None:
    """A rank without further batches takes part with weight 0."""
    rows_found = []
    for placement in EITHER:
        model, layers = big_model(placement)
        equal_steps = tsps.callbacks.EqualSteps(dataset(2 + this_rank.rank(), 9))
        model.fit(equal_steps.dataset, epochs=2, verbose=0, shuffle=False, callbacks=[equal_steps])
        rows_found.append([rows_of(layer) for layer in layers])
    equal(*rows_found)


# --- refusals and reports ---


def what_cannot_be_is_refused_on_all_ranks() -> None:
    model, (layer, *_) = big_model(Sharded())
    with pytest.raises(UnsupportedError, match="topology='flat'"):
        tsps.DistributedOptimizer("sgd", topology="flat").build(model.trainable_variables)
    with pytest.raises(Exception, match="cannot be looked up in a function of a tf"):
        dataset(1, 1).map(lambda x, y: (layer(x), y))
    with pytest.raises(Exception, match="jit_compile=False"):
        tf.function(layer, jit_compile=True)(tf.ones([1], tf.int64))


def a_step_that_is_refused_leaves_look_ups_as_they_were() -> None:
    model, _ = big_model(Sharded())
    x, y = data(1, 4)
    model.train_on_batch(x, y)
    before = model.predict(x, verbose=0)
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
            model.train_on_batch(x, y * np.float32("nan") if this_rank.rank() == 1 else y)
        np.testing.assert_array_equal(model.predict(x, verbose=0), before)
    model.train_on_batch(x, y)
    assert (model.predict(x, verbose=0) != before).any()


def nodes_say_what_they_have() -> None:
    model, layers = big_model(Sharded())
    model.fit(dataset(4, 1), verbose=0)
    statistics = model.optimizer.statistics()
    bindings = [
        b
        for layer in (
            *layers,
            *(collection for collection in model.layers if isinstance(collection, tsps.EmbeddingCollection)),
        )
        for b in layer.bindings
        if layer.trainable
    ]
    here = sum(len(b.reader()) for b in bindings if b.placement == "sharded")
    assert statistics["sharded_rows"] == here > 0
    assert statistics["sharded_bytes"] > 0
    assert 1 <= statistics["sharded_max_over_mean"] <= len(tsps.job.current().leaders)
    same(statistics["sharded_max_over_mean"])


SCENARIOS = (
    all_layers_train_as_replicated_ones,
    several_steps_at_once_and_eager_ones_give_the_same,
    ragged_and_sparse_ids,
    a_narrow_pull_rounds_all_rows_alike,
    a_copy_of_a_model_has_shards_of_its_own,
    rows_are_erased_on_all_nodes,
    look_ups_in_control_flow,
    a_function_that_is_traced_anew_and_another_one,
    many_look_ups_in_flight,
    looking_ahead_changes_no_number,
    different_numbers_of_validation_batches,
    different_numbers_of_batches,
    what_cannot_be_is_refused_on_all_ranks,
    a_step_that_is_refused_leaves_look_ups_as_they_were,
    nodes_say_what_they_have,
)


def main() -> None:
    """Runs all scenarios on all ranks."""
    if this_rank.number() == 1:  # an op that waits must not block this rank's only thread
        tf.config.threading.set_inter_op_parallelism_threads(1)
    this_rank.init()
    for scenario in SCENARIOS:
        if sys.argv[1] == "all" or scenario.__name__ in sys.argv[1].split(","):
            print(f"rank {this_rank.rank()}: {scenario.__name__}", flush=True)  # shown when the test times out
            scenario()
    tsps.collectives.current().barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
