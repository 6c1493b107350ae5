"""Layers with sharded tables in a job of one rank, which has all rows. The job refuses what larger jobs refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import functional, keras

import tf_sparse_ps as tsps
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.errors import UnsupportedError

WIRE = tsps.Sharded(wire="bfloat16")


def collection() -> Any:
    spread, here = (
        tsps.TableConfig(name, 3, placement=placement, initializer="ones")
        for name, placement in (("spread", WIRE), ("here", "replicated"))
    )
    return tsps.EmbeddingCollection(
        {
            "a": tsps.FeatureConfig(spread),
            "b": tsps.FeatureConfig(here, combiner="sum"),
            "c": tsps.FeatureConfig(spread, combiner="mean"),
        }
    )


MAKE: dict[str, Callable[[], Any]] = {
    "embedding": lambda: tsps.Embedding(50, 3, "ones", placement=WIRE),
    "reduce": lambda: tsps.EmbeddingReduce(None, 3, "ones", combiner="sum", placement=WIRE),
    "table": lambda: tsps.Embedding(None, 3, table=tsps.TableConfig("t", 3, placement=WIRE)),
    "collection": collection,
}


@pytest.mark.parametrize("name", MAKE)
def test_a_configuration_comes_back_as_it_was(name: str) -> None:
    layer = MAKE[name]()
    copied = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
    assert [config.get_config() for config in copied.table_configs()] == [
        config.get_config() for config in layer.table_configs()
    ]
    assert copied.table_configs()[0].placement == WIRE
    assert copied.table_configs()[0].facts() == layer.table_configs()[0].facts()


def test_placements_are_facts_that_ranks_compare() -> None:
    configs = [tsps.TableConfig("t", 3, placement=placement) for placement in ("replicated", Sharded(), WIRE)]
    assert len({str(config.facts()) for config in configs}) == 3


@pytest.mark.parametrize("way", ["clone", "json"])
def test_a_copy_of_a_model_is_sharded_too(way: str) -> None:
    model = functional(tsps.Embedding(50, 3, placement=WIRE))
    copy = keras.models.clone_model(model) if way == "clone" else keras.models.model_from_json(model.to_json())
    (binding,), (copied_binding,) = (source_model.layers[1].bindings for source_model in (model, copy))
    assert binding.config.placement == copied_binding.config.placement == WIRE
    assert binding.uuid != copied_binding.uuid


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tsps.Sharded(wire="int8"), "wire='int8'"),
        (lambda: tsps.Embedding(9, 3, placement="sharded"), 'must be "replicated" or a tsps.Sharded'),
        (lambda: tsps.TableConfig("t", 3, placement=tsps.Sharded), "tsps.Sharded. Received"),
        (
            lambda: tsps.Embedding(None, 3, table=tsps.TableConfig("t", 3), placement=WIRE),
            "Give them to the table",
        ),
    ],
)
def test_what_is_no_placement_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def trained(placement: Any, *, calls: int = 1) -> list[np.ndarray]:
    """Trains a model with all layers. Returns losses, predictions, keys and rows."""
    keras.utils.set_random_seed(3)
    results = []
    ids = keras.Input((3,), dtype="int64")
    options = {"placement": placement}
    layer = tsps.Embedding(50, 4, "ones", mask_zero=True, **options)
    bag = tsps.EmbeddingReduce(None, 4, "ones", combiner="mean", **options)
    configs = [tsps.TableConfig(f"t{n}", 4, initializer="ones", **(options if n else {})) for n in range(2)]
    many = tsps.EmbeddingCollection({f"f{n}": tsps.FeatureConfig(configs[n % 2], combiner="sum") for n in range(3)})
    fields = many({f"f{n}": ids for n in range(3)})
    parts = [keras.layers.LSTM(3)(layer(ids)), *(bag(ids) for _ in range(calls)), *fields.values()]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse", steps_per_execution=2)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 50, (64, 3)), random.normal(size=(64, 1)).astype(np.float32)
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=(x[:8], y[:8]))
    results += [np.array(history.history["val_loss"]), model.predict(x, verbose=0)]
    for binding in (*layer.bindings, *bag.bindings, *many.bindings):
        keys = np.sort(binding.reader().keys())
        results += [keys, binding.reader().lookup(keys)]
    return results


def test_on_one_machine_the_numbers_are_those_of_a_replicated_table() -> None:
    for array, expected in zip(trained(tsps.Sharded(), calls=2), trained("replicated", calls=2), strict=True):
        np.testing.assert_array_equal(array, expected)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "clipnorm": (lambda: tsps.DistributedOptimizer(keras.optimizers.SGD(0.1, clipnorm=1.0)), "Use clipvalue"),
    "global_clipnorm": (
        lambda: tsps.DistributedOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=1.0)),
        "global_clipnorm=1.0: no machine has all reduced gradients",
    ),
    "flat": (lambda: tsps.DistributedOptimizer("sgd", topology="flat"), "topology='flat': gradients are sent only to"),
    "delayed": (
        lambda: tsps.DistributedOptimizer("sgd", schedule=tsps.schedules.DelayedGlobal(staleness=1)),
        "DelayedGlobal.*lookups of such tables need all ranks at one step",
    ),
    "server": (
        lambda: tsps.DistributedOptimizer("sgd", schedule=tsps.schedules.TimedBuckets(server=True)),
        "server=True sends new dense weights",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_cannot_train_sharded_tables_refuse_them_on_one_machine_too(name: str) -> None:
    make, message = REFUSED[name]
    model = functional(tsps.Embedding(50, 3, placement=WIRE, name="words"))
    with pytest.raises(UnsupportedError, match=f"table 'words' is sharded and cannot be trained with .*{message}"):
        make().build(model.trainable_variables)
    before = model.get_weights()
    model.compile(make(), "mse")
    with pytest.raises(Exception, match=message):  # AutoGraph in Keras 2 raises a type of its own
        model.fit(np.zeros((4, 3), np.int64), np.zeros((4, 1), np.float32), verbose=0)
    for array, expected in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("options", [{"clipvalue": 0.5}, {}])
def test_optimizers_that_can_do(options: dict[str, Any]) -> None:
    model = functional(tsps.Embedding(50, 3, placement=WIRE))
    schedule = tsps.schedules.TimedBuckets(profile_steps=2) if not options else None
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1, **options), schedule=schedule), "mse")
    before = model.layers[1].get_weights()[0]
    model.fit(np.ones((4, 3), np.int64), np.zeros((4, 1), np.float32), verbose=0)
    assert (model.layers[1].get_weights()[0] != before).any()
    statistics = model.optimizer.statistics()
    assert (statistics["sharded_rows"], statistics["sharded_max_over_mean"]) == (0, 1)  # all rows are on one machine


def test_a_look_up_in_a_dataset_is_refused() -> None:
    layer = tsps.Embedding(50, 3, placement=WIRE, name="words")
    layer.build(None)
    ids = tf.data.Dataset.from_tensor_slices(np.ones((4, 3), np.int64)).batch(2)
    for function in (layer, tf.function(layer)):
        with pytest.raises(Exception, match="'words' cannot be looked up in a function of a tf"):
            ids.map(lambda batch, function=function: function(batch))
    assert layer(np.ones((2, 3), np.int64)).shape == (2, 3, 3)


def test_frozen_tables_are_read_and_not_trained() -> None:
    layer = tsps.Embedding(50, 3, placement=WIRE, trainable=False)
    model = functional(layer)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    before = layer.get_weights()[0]
    model.fit(np.ones((4, 3), np.int64), np.ones((4, 1), np.float32), verbose=0)
    np.testing.assert_array_equal(layer.get_weights()[0], before)
