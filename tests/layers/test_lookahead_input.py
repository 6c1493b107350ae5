"""Inputs of `tsps.lookahead`: datasets of all kinds, elements for other models, and keys that were not announced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import functional
from lookahead_support import (
    BATCH,
    BATCHES,
    MEMORY,
    ROWS,
    Subclassed,
    assert_equal,
    built,
    dataset,
    sequential,
    table_of,
)

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops


@pytest.fixture
def disk(tmp_path: Path) -> tsps.Tiered:
    return tsps.Tiered(tmp_path / "disk", memory=MEMORY)


def fixed_length(tmp_path: Path) -> tf.data.Dataset:
    """Returns the elements of `dataset` as records of a file. TensorFlow does not know how many there are."""
    width = 3 * 8 + 4
    with open(tmp_path / "records", "wb") as file:
        for ids, labels in dataset().unbatch():
            file.write(ids.numpy().tobytes() + labels.numpy().tobytes())

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids = tf.io.decode_raw(tf.strings.substr(record, 0, 24), tf.int64)
        return tf.ensure_shape(ids, [3]), tf.ensure_shape(
            tf.io.decode_raw(tf.strings.substr(record, 24, 4), tf.float32), [1]
        )

    return tf.data.FixedLengthRecordDataset(str(tmp_path / "records"), width).map(parse).batch(BATCH)


def from_generator(_: Path) -> tf.data.Dataset:
    def elements() -> Iterator[Any]:
        yield from dataset().as_numpy_iterator()

    return tf.data.Dataset.from_generator(elements, output_signature=dataset().element_spec)


def filtered(_: Path) -> tf.data.Dataset:
    return dataset().unbatch().filter(lambda ids, labels: True).batch(BATCH)


@pytest.mark.parametrize("batches", [4, pytest.param("auto", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("source", [fixed_length, from_generator, filtered])
@pytest.mark.daily_cases(1)
def test_datasets_of_unknown_length(disk: tsps.Tiered, tmp_path: Path, source: Any, batches: Any) -> None:
    data = source(tmp_path)
    assert data.cardinality() == tf.data.UNKNOWN_CARDINALITY
    memory, tiered = built("memory"), built(disk)
    ahead = tsps.lookahead(data, tiered, batches=batches)
    assert ahead.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert ahead.element_spec == data.element_spec
    memory.fit(data, epochs=2, verbose=0)
    tiered.fit(ahead, epochs=2, verbose=0)
    assert memory.optimizer.iterations.numpy() == tiered.optimizer.iterations.numpy() == 2 * BATCHES
    assert_equal(memory, tiered)


def test_an_empty_dataset(disk: tsps.Tiered) -> None:
    assert not list(tsps.lookahead(dataset().take(0), built(disk)))


@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.daily_cases(1)
def test_cached_after_it_the_numbers_are_the_same(disk: tsps.Tiered, tmp_path: Path, store: str) -> None:
    memory, tiered = built("memory"), built(disk)
    memory.fit(dataset(), epochs=3, verbose=0)
    before = int(_ops.disk_counters().batches)
    ahead = tsps.lookahead(dataset(), tiered, batches=4).cache(str(tmp_path / "cache") if store == "file" else "")
    assert (
        sum(1 for _ in ahead) == BATCHES
    )  # reads it to the end, so that the cache is complete; `fit` may stop earlier
    tiered.fit(ahead, epochs=3, verbose=0)
    assert_equal(memory, tiered)
    # Later epochs are read from the cache, so nothing is announced.
    assert int(_ops.disk_counters().batches) - before == BATCHES


def zeros(*shape: int, dtype: Any = np.int64) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("make", [functional, sequential, Subclassed])
@pytest.mark.parametrize(
    ("inputs", "received", "reason"),
    [
        (zeros(8, 2, 5, dtype=np.float32), r"float32\[None, 2, 5\]", "shape|integers"),
        (zeros(8, 7), r"int64\[None, 7\]", "shape"),
        (np.array([["a", "b", "c"]] * 8), r"string\[None, 3\]", "integers|cast"),
        ({"user": zeros(8, 5), "item": zeros(8)}, r"'user': 'int64\[None, 5\]'", ""),
    ],
    ids=["floats", "wide", "strings", "dict"],
)
def test_a_dataset_for_another_model(disk: tsps.Tiered, make: Any, inputs: Any, received: str, reason: str) -> None:
    model = built(disk, make)
    data = tf.data.Dataset.from_tensor_slices((inputs, zeros(8))).batch(4)
    # The error is raised when the dataset is made, before training.
    with pytest.raises(
        ValueError, match=rf"(?s)model '{model.name}' cannot be run .*{reason}.*Received: inputs .*{received}"
    ):
        tsps.lookahead(data, model, batches=4)


def test_ids_outside_of_a_table_are_refused_by_the_step(disk: tsps.Tiered) -> None:
    model = built(disk)
    data = dataset(2).concatenate(dataset(1).map(lambda ids, labels: (ids + ROWS, labels)))
    with pytest.raises(Exception, match=rf"ids\[\d+,\d+\] = \d+ is not in \[0, {ROWS}\)"):
        model.fit(tsps.lookahead(data, model, batches=4), verbose=0)
    assert model.optimizer.iterations.numpy() == 2


def test_keys_that_were_not_announced_are_read_late(disk: tsps.Tiered) -> None:
    memory, tiered = built("memory"), built(disk)
    name = next(layer.name for layer in tiered.layers if isinstance(layer, tsps.Embedding))
    for model in (memory, tiered):
        model.fit(dataset(), verbose=0)
    before = tiered.optimizer.statistics()
    ahead = tsps.lookahead(dataset(seed=1), tiered, batches=4, keys_of=lambda element: {name: element[0][:, :1]})
    tiered.fit(ahead, epochs=2, verbose=0)
    memory.fit(dataset(seed=1), epochs=2, verbose=0)
    assert_equal(memory, tiered)
    after = tiered.optimizer.statistics()
    # Two of the three columns were not announced, and more than half of the rows are on disk.
    late = after["rows_read_late"] - before["rows_read_late"]
    assert late > BATCHES * BATCH, late
    assert after["rows_read"] - before["rows_read"] >= late


def test_a_pass_longer_than_memory_has_room_for(disk: tsps.Tiered) -> None:
    memory, tiered = built("memory"), built(disk)
    data = dataset(96)
    room = table_of(tiered).stats()["rows_to_stage"]
    assert 0 < room < 96 * BATCH  # a pass would have more rows
    memory.fit(data, epochs=2, verbose=0)
    tiered.fit(tsps.lookahead(data, tiered, batches=96), epochs=2, verbose=0)
    assert int(_ops.disk_counters().failed) == 0
    assert_equal(memory, tiered)


def test_memory_that_has_no_room_for_the_rows_of_a_batch(disk: tsps.Tiered, tmp_path: Path) -> None:
    small = tsps.Tiered(tmp_path / "small", memory=1_630_000)
    model = built(small)
    for data in (dataset(), tsps.lookahead(dataset(), model, batches=4)):
        with pytest.raises(
            Exception, match=r"a change of \d+ rows at once, .*; two such changes take (\d+) bytes"
        ) as error:
            model.fit(data, verbose=0)
        assert model.optimizer.iterations.numpy() == 0
    enough = int(str(error.value).split("two such changes take ")[1].split()[0])
    memory, tiered = built("memory"), built(tsps.Tiered(tmp_path / "enough", memory=enough + 2**12))
    memory.fit(dataset(), verbose=0)
    tiered.fit(tsps.lookahead(dataset(), tiered, batches=4), verbose=0)
    assert table_of(tiered).stats()["rows_on_disk"] > 0
    assert_equal(memory, tiered)
    with pytest.raises(
        Exception, match=r"memory of 1000000 bytes has no room for 64 of its rows; that takes 16\d+ bytes"
    ):
        built(tsps.Tiered(tmp_path / "none", memory=1_000_000))


def test_a_disk_without_room_is_refused_where_the_layer_is_built(tmp_path: Path) -> None:
    layer = tsps.Embedding(2**28, 65536, storage=tsps.Tiered(tmp_path / "disk", "8GiB"))
    with pytest.raises(tsps.errors.NoSpaceError, match=rf"{2**28} rows of .*{tmp_path}/disk/.* has \d+ bytes free"):
        layer.build((None, 3))
    # A layer that fits can still be made.
    assert tsps.Embedding(ROWS, 4, storage=tsps.Tiered(tmp_path / "disk", MEMORY))(zeros(2)).shape == (2, 4)
