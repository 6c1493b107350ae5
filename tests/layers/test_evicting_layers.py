"""Layers whose tables evict rows, in one process. tests/multirank/test_table_policies.py compares ranks and nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import compiled, keras, layer_and_model, table_of

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import StateError

EVICTION = tsps.Eviction(max_rows=60, keep=[1])


def data(batches: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns batches of 10 samples of 3 ids, each of which is there once, and their targets."""
    ids = np.arange(30 * batches).reshape(-1, 3) + first
    return ids, np.ones((len(ids), 1), np.float32)


def fit(model: Any, batches: int, first: int = 0) -> None:
    ids, targets = data(batches, first)
    model.fit(ids, targets, batch_size=10, verbose=0, shuffle=False)


@pytest.mark.parametrize("kind", ["argument", "table", "reduce", "collection"])
def test_training_evicts(kind: str) -> None:
    layer, model = layer_and_model(kind, eviction=EVICTION)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))
    model.compile(optimizer, "mse")
    fit(model, 5)
    assert len(table_of(layer)) == 60
    assert {1, *range(120, 150)} <= set(table_of(layer).keys().tolist())
    assert optimizer.statistics()["rows_evicted_excess"] == 90
    model.predict(data(1, 10_000)[0], verbose=0)
    assert len(table_of(layer)) == 60


def test_evicted_ids_read_their_initial_values_and_start_with_new_slots() -> None:
    layer = tsps.Embedding(None, 4, eviction=tsps.Eviction(2))
    model = compiled(layer)
    first = layer(tf.range(30, dtype=tf.int64)).numpy()
    fit(model, 4)
    assert table_of(layer).stats()["evicted_unused"] == 60
    np.testing.assert_array_equal(layer(tf.range(30, dtype=tf.int64)).numpy(), first)
    ids, targets = data(1)
    model.fit(ids, targets, batch_size=10, sample_weight=np.zeros(10), verbose=0)
    _, rows, slots = table_of(layer).entries(np.arange(30))
    np.testing.assert_array_equal(rows, first)
    np.testing.assert_array_equal(slots[0], np.full((30, 4), 0.1, np.float32))


def test_a_batch_with_more_ids_than_the_bound_ends_with_the_numbers() -> None:
    model = compiled(tsps.Embedding(None, 4, eviction=tsps.Eviction(max_rows=29)))
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"30 keys.*at most 29 rows"):
        fit(model, 1)


def test_models_carry_their_eviction(tmp_path: Path) -> None:
    eviction = tsps.Eviction(9, max_rows=60, policy="lfu", half_life=5, keep=[3])
    layer = tsps.Embedding(None, 4, eviction=eviction)
    model = compiled(layer)
    fit(model, 3)
    assert keras.models.clone_model(model).layers[-3].eviction == eviction
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    again = next(part for part in loaded.layers if isinstance(part, tsps.Embedding))
    assert again.eviction == eviction
    assert sorted(table_of(again).keys()) == sorted(table_of(layer).keys())
    fit(loaded, 3, 500)
    assert len(table_of(again)) == 60
    inside = tsps.Embedding(None, 4, table=tsps.TableConfig("t", 4, eviction=eviction))
    assert tsps.Embedding.from_config(inside.get_config()).table.eviction == eviction


@pytest.mark.parametrize("rule", [keras.optimizers.Adagrad, keras.optimizers.SGD])  # with slots and without
def test_a_checkpoint_has_the_uses(tmp_path: Path, rule: Any) -> None:
    layers = [tsps.Embedding(None, 4, name="e", eviction=tsps.Eviction(1000, max_rows=80)) for _ in range(2)]
    saved, restored = (compiled(layer) for layer in layers)
    for model in (saved, restored):
        model.compile(tsps.DistributedOptimizer(rule(0.1)), "mse")
    fit(saved, 4)
    checkpointer = tsps.Checkpointer(tmp_path / "c", saved, saved.optimizer)
    checkpointer.save()
    checkpointer.wait()
    table, again = (table_of(layer) for layer in layers)
    keys = np.sort(table.keys())
    uses = table.metadata(keys)["use"]
    tsps.Checkpointer(tmp_path / "c", restored, restored.optimizer).restore()
    np.testing.assert_array_equal(np.sort(again.keys()), keys)
    np.testing.assert_array_equal(again.metadata(keys)["use"], uses)
    assert uses[:, 0].min() < uses[:, 0].max()


def test_rows_of_a_checkpoint_without_uses_count_as_used_in_its_step(tmp_path: Path) -> None:
    plain = compiled(tsps.Embedding(None, 4, name="e"))
    fit(plain, 4)
    checkpointer = tsps.Checkpointer(tmp_path / "c", plain, plain.optimizer)
    checkpointer.save()
    checkpointer.wait()
    layer = tsps.Embedding(None, 4, name="e", eviction=tsps.Eviction(3))
    model = compiled(layer)
    model(data(1)[0])
    tsps.Checkpointer(tmp_path / "c", model, model.optimizer).restore()
    step = table_of(layer).step
    assert table_of(layer).metadata([0, 119])["use"].tolist() == [[step, 0]] * 2
    fit(model, 2, 500)
    assert len(table_of(layer)) == 180, "no row is older than the checkpoint"
    fit(model, 1, 600)
    assert len(table_of(layer)) == 90


def test_loaded_weights_count_as_used_now(tmp_path: Path) -> None:
    layer = tsps.Embedding(None, 4, eviction=tsps.Eviction(1000))
    model = compiled(layer)
    fit(model, 3)
    model.save_weights(tmp_path / "m.weights.h5")
    fit(model, 4)
    model.load_weights(tmp_path / "m.weights.h5")
    table = table_of(layer)
    assert table.metadata([0, 89])["use"].tolist() == [[table.step, 0]] * 2


def test_evicting_at_once() -> None:
    layer = tsps.Embedding(None, 4, eviction=tsps.Eviction(1000, keep=[2]))
    model = compiled(layer)
    fit(model, 4)
    layer.evict()
    assert len(table_of(layer)) == 120
    layer.evict(tsps.Eviction(1, keep=[0]))
    assert sorted(table_of(layer).keys().tolist()) == [0, 2, *range(90, 120)]
    layer.evict(tsps.Eviction(max_rows=5))
    assert len(table_of(layer)) == 5
    layer.evict(tsps.Eviction(max_rows=1))
    assert len(table_of(layer)) == 1
    plain = tsps.Embedding(None, 4)
    with pytest.raises(ValueError, match="before it is built"):
        plain.evict()
    compiled(plain)
    with pytest.raises(ValueError, match="has no eviction"):
        plain.evict()
    with pytest.raises(StateError, match="does not record the use"):
        plain.evict(tsps.Eviction(5))


def test_a_layer_with_a_table_takes_its_eviction_from_there() -> None:
    with pytest.raises(ValueError, match="takes storage, placement, eviction and admission from the table"):
        tsps.Embedding(None, 4, table=tsps.TableConfig("t", 4), eviction=EVICTION)


def test_a_schedule_that_delays_tables_is_refused() -> None:
    layer = tsps.Embedding(None, 4, eviction=EVICTION)
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    schedule = tsps.schedules.DelayedGlobal(staleness=1)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=schedule), "mse")
    with pytest.raises(Exception, match=r"eviction=.*cannot be trained with DelayedGlobal"):
        fit(model, 1)


@pytest.mark.parametrize("options", [{"max_rows": 60, "eviction": tsps.Eviction(1000)}, {"eviction": EVICTION}])
def test_a_full_table_goes_back_to_other_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    layer, full = (tsps.Embedding(None, 4, table=tsps.TableConfig("t", 4, **options)) for _ in range(2))
    model, restored = compiled(layer), compiled(full)
    fit(model, 2)
    rows = table_of(layer).lookup(np.arange(60))
    checkpointer = tsps.Checkpointer(tmp_path / "c", model, model.optimizer)
    checkpointer.save()
    checkpointer.wait()
    model.save_weights(tmp_path / "m.weights.h5")
    fit(model, 3, 500)
    full.bindings[0].assign(np.arange(500, 560), np.ones((60, 4), np.float32))  # as the rows of a killed run
    model.load_weights(tmp_path / "m.weights.h5")
    tsps.Checkpointer(tmp_path / "c", restored, restored.optimizer).restore()
    for table in (table_of(layer), table_of(full)):
        assert sorted(table.keys()) == list(range(60))
        np.testing.assert_array_equal(table.lookup(np.arange(60)), rows)


@pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")
@pytest.mark.parametrize(
    "options", [{"max_rows": 40}, {"admission": tsps.Admission(2, 100)}, {"eviction": tsps.Eviction(max_rows=40)}]
)
def test_a_restored_vocabulary_has_no_further_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    """The seeds differ. So a table without these options gets a row with its saved initial value for each id."""
    layers = [
        tsps.Embedding(1000, 4, name="e", table=tsps.TableConfig("t", 4, key_limit=1000, seed=seed, **options))
        for seed in (1, 2)
    ]
    saved, restored = (compiled(layer) for layer in layers)
    fit(saved, 1)
    fit(saved, 1)
    checkpointer = tsps.Checkpointer(tmp_path / "c", saved, saved.optimizer)
    checkpointer.save()
    checkpointer.wait()
    tsps.Checkpointer(tmp_path / "c", restored, restored.optimizer).restore()
    assert sorted(table_of(layers[1]).keys()) == sorted(table_of(layers[0]).keys()) == list(range(30))
