"""`layer.erase` removes rows between two steps."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import IDS, TARGETS, compiled, keras
from lookahead_support import DIM, MEMORY

import tf_sparse_ps as tsps


def table_of(layer: Any) -> Any:
    return layer.bindings[0].reader()


def test_an_erased_id_reads_its_initial_value_and_is_trained_like_a_new_one() -> None:
    layer = tsps.Embedding(None, 4)
    model = compiled(layer)
    ids = tf.constant(np.unique(IDS))
    first = layer(ids).numpy()
    model.fit(IDS, TARGETS, epochs=2, verbose=0)
    trained = layer(ids).numpy()
    layer.erase([3, 9, 1000])
    gone = np.isin(ids, [3, 9])
    np.testing.assert_array_equal(layer(ids).numpy(), np.where(gone[:, np.newaxis], first, trained))
    assert sorted(table_of(layer).keys()) == sorted(set(IDS.ravel().tolist()) - {3, 9})
    model.fit(IDS, TARGETS, sample_weight=np.zeros(2), verbose=0)  # makes new rows, whose gradients are 0
    np.testing.assert_array_equal(layer(ids).numpy(), np.where(gone[:, np.newaxis], first, trained))
    present, _, slots = table_of(layer).entries(np.array([2, 3, 9]))
    assert present.all()
    np.testing.assert_array_equal(slots[0][1:], np.full((2, 4), 0.1, np.float32))
    assert slots[0][0].min() > 0.1


def test_zeros_at_the_end_of_bytes_belong_to_the_id() -> None:
    layer = tsps.Embedding(None, 4)
    packed = struct.pack("<q", 17)  # NumPy's arrays of bytes would drop its zeros
    ids = tf.constant([packed, b"\x11"])
    layer(ids)
    layer.bindings[0].assign(tsps.keys.fingerprint([packed, b"\x11"]), np.ones((2, 4), np.float32))
    layer.erase([packed])
    np.testing.assert_array_equal((layer(ids).numpy() == 1).all(1), [False, True])
    tsps.transfer(([packed], np.full((1, 4), 2, np.float32)), layer)
    np.testing.assert_array_equal(layer(ids).numpy()[:, 0], [2, 1])


def test_erasing_rows_on_disk(tmp_path: Path) -> None:
    layer = tsps.Embedding(None, DIM, storage=tsps.Tiered(tmp_path / "disk", memory=MEMORY))
    model = compiled(layer)
    ids = np.arange(3 * 1000)
    first = layer(tf.constant(ids)).numpy()
    model.fit(ids.reshape(-1, 3), np.ones((1000, 1), np.float32), batch_size=64, verbose=0)
    assert table_of(layer).stats()["rows_on_disk"] > 1000
    trained = layer(tf.constant(ids)).numpy()
    assert (trained != first).any(1).all()
    gone = ids % 7 == 0
    layer.erase(ids[gone])
    assert sorted(table_of(layer).keys()) == ids[~gone].tolist()
    np.testing.assert_array_equal(layer(tf.constant(ids)), np.where(gone[:, np.newaxis], first, trained))


def test_erasing_inside_of_fit() -> None:
    layer = tsps.Embedding(None, 4)
    model = compiled(layer)

    class Forget(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            layer.erase(np.array([9]))

    model.fit(IDS, TARGETS, batch_size=1, epochs=2, verbose=0, shuffle=False, callbacks=[Forget()])
    assert sorted(table_of(layer).keys()) == sorted(set(IDS.ravel().tolist()) - {9})


def test_erasing_strings_and_features() -> None:
    users, words = tsps.TableConfig("users", 4), tsps.TableConfig("words", 4)
    layer = tsps.EmbeddingCollection({"user": tsps.FeatureConfig(users), "word": tsps.FeatureConfig(words)})
    ids = {"user": tf.constant(["u", "v"]), "word": tf.constant(["u", "v"])}
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(rows) for rows in layer(ids).values()])
    optimizer.apply_gradients(
        zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables, strict=True)
    )
    layer.erase(["u"], table="words")
    tables = [binding.reader() for binding in layer.bindings]
    assert [len(table) for table in tables] == [2, 1]
    assert tables[1].keys().tolist() == tsps.keys.fingerprint(["v"]).tolist()
    with pytest.raises(ValueError, match=r"`table` must be one of \['users', 'words'\]. Received: table=None"):
        layer.erase(["u"])
    with pytest.raises(ValueError, match=r"Received: table='word'"):
        layer.erase(["u"], table="word")


def test_erasing_rows_of_a_cached_table() -> None:
    layer = tsps.Embedding(None, 4, "zeros", cache=tsps.DeviceCache(rows=64))
    model = compiled(layer)
    model.fit(IDS, TARGETS, epochs=2, verbose=0)
    assert np.abs(layer(tf.constant([3]))).max() > 0
    layer.erase([3])
    np.testing.assert_array_equal(layer(tf.constant([3])), np.zeros((1, 4)))
    assert sorted(table_of(layer).keys()) == sorted(set(IDS.ravel().tolist()) - {3})


def test_no_ids_and_absent_ids_are_allowed() -> None:
    layer = tsps.Embedding(10, 4)
    layer.build(None)
    layer.erase([])
    layer.erase(tf.constant([[1], [1]]))


def test_all_kinds_of_ids() -> None:
    layer = tsps.Embedding(None, 4)
    model = compiled(layer)
    model.fit(IDS, TARGETS, verbose=0)
    left = set(IDS.ravel().tolist())
    for ids in (
        tf.ragged.constant([[1], []]),
        tf.sparse.from_dense([[0, 2]]),
        np.array([3], np.uint64),
        [[9]],
        0,
    ):
        layer.erase(ids)
        flat = getattr(ids, "flat_values", getattr(ids, "values", ids))
        left -= set(np.ravel(flat).tolist())
        assert set(table_of(layer).keys().tolist()) == left


@pytest.mark.parametrize("ids", [[2**63], np.array([2**63], np.uint64), ["a", 1], [1.5], [None]], ids=str)
def test_ids_that_no_table_has(ids: Any) -> None:
    layer = tsps.Embedding(None, 4, name="words")
    layer.build(None)
    with pytest.raises(ValueError, match=r"'words'.*must be.*Received"):
        layer.erase(ids)


@pytest.mark.parametrize(("ids", "words"), [([10], "10"), ([-1, 3], "-1")], ids=str)
def test_ids_out_of_range(ids: list[int], words: str) -> None:
    layer = tsps.Embedding(10, 4, name="words")
    layer.build(None)
    with pytest.raises(ValueError, match=rf"'words': ids must be in \[0, 10\)\. Received: {words}"):
        layer.erase(ids)


def test_what_is_no_id_or_no_place_for_it() -> None:
    layer = tsps.Embedding(10, 4, name="words")
    with pytest.raises(ValueError, match="before it is built"):
        layer.erase([1])
    layer.build(None)
    with pytest.raises(ValueError, match="ids must be integers, because the vocabulary is bounded"):
        layer.erase(["a"])
    with pytest.raises(ValueError, match="ids must be integers"):
        layer.erase([1.5])
    with pytest.raises(ValueError, match=r"'words': call erase\(\) eagerly"):
        tf.function(lambda: layer.erase([1]))()
