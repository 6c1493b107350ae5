"""`tsps.lookahead` changes when rows are read, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from layer_support import functional, keras
from lookahead_support import (
    BATCHES,
    MEMORY,
    Subclassed,
    assert_equal,
    built,
    dataset,
    sequential,
    table_of,
)

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops
from tf_sparse_ps.errors import UnsupportedError


@pytest.fixture
def disk(tmp_path: Path) -> tsps.Tiered:
    return tsps.Tiered(tmp_path / "disk", memory=MEMORY)


def test_elements_are_those_of_the_dataset(disk: tsps.Tiered) -> None:
    model = built(disk)
    plain = dataset()
    ahead = tsps.lookahead(plain, model, batches=4)
    assert ahead.element_spec == plain.element_spec
    assert ahead.cardinality() == plain.cardinality()
    for element, expected in zip(ahead, plain, strict=True):
        for x, y in zip(element, expected, strict=True):
            np.testing.assert_array_equal(x, y)
    endless = tsps.lookahead(plain.repeat(), model, batches=4)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize(
    ("batches", "make"), [(1, functional), (4, sequential), (32, Subclassed), ("auto", functional)]
)
@pytest.mark.daily_cases(1)
def test_training_is_that_in_memory_bit_for_bit(disk: tsps.Tiered, batches: Any, make: Any) -> None:
    memory, tiered = built("memory", make), built(disk, make)
    for data in (dataset(), dataset(seed=1)):
        memory.fit(data, epochs=2, verbose=0, validation_data=dataset(2))
        ahead = tsps.lookahead(data, tiered, batches=batches)
        tiered.fit(ahead, epochs=2, verbose=0, validation_data=dataset(2))
    assert table_of(tiered).stats()["rows_on_disk"] > 0
    assert_equal(memory, tiered)


def test_rows_are_read_ahead(disk: tsps.Tiered) -> None:
    model = built(disk)
    model.fit(dataset(), verbose=0)  # rows that do not fit into memory go to disk
    before = _ops.disk_counters()
    # The batches leave enough time for the rows to be read ahead.
    for ids, labels in tsps.lookahead(dataset(), model, batches=1):
        time.sleep(0.05)
        model.train_on_batch(ids, labels)
    after = _ops.disk_counters()
    late, hits = int(after.late - before.late), int(after.cached - before.cached)
    assert int(after.passes - before.passes) == BATCHES
    assert int(after.failed) == 0
    # Each row counts two hits, one in the forward pass and one in the update. Some rows that were in memory when the
    # pass was read are evicted before they are needed.
    assert hits > 3 * late, (hits, late)
    statistics = model.optimizer.statistics()
    assert statistics["rows_read_before"] >= hits
    assert statistics["disk_bytes"] > 0
    assert statistics["disk_waited_s"] > 0


class Leave(keras.callbacks.Callback):
    """Ends `fit` after a batch. Each batch takes a random time."""

    def __init__(self, after: int, random: np.random.Generator) -> None:
        super().__init__()
        self.after, self.random = after, random

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(self.random.uniform(0, 0.004))
        self.model.stop_training = batch >= self.after


def slow(data: tf.data.Dataset, random: np.random.Generator) -> tf.data.Dataset:
    """Returns a dataset of the same elements, some of which take long."""

    def wait(ids: tf.Tensor) -> tf.Tensor:
        time.sleep(random.choice([0, 0.001, 0.02], p=[0.5, 0.4, 0.1]))
        return ids

    def element(ids: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.py_function(wait, [ids], tf.int64), ids.shape), labels

    return data.map(element)


@pytest.mark.parametrize("breaks", [20, pytest.param(100, marks=pytest.mark.nightly)])
def test_early_breaks_leave_nothing_behind(disk: tsps.Tiered, breaks: int) -> None:
    memory, tiered = built("memory"), built(disk)
    random = np.random.default_rng(0)
    data = dataset()
    datasets = [tsps.lookahead(slow(data, random), tiered, batches=n) for n in (1, 4, 9, "auto")]
    for number in range(breaks):
        stop = int(random.integers(0, 6))
        for model, source in ((memory, data), (tiered, datasets[number % 4])):
            if number % 3 == 0:
                model.fit(source, verbose=0, callbacks=[Leave(stop, random)])
                continue
            for index, (ids, labels) in enumerate(source):
                if index == stop:
                    break
                model.train_on_batch(ids, labels)
        time.sleep(random.uniform(0, 0.02))
        if number % 10 == 9:
            assert memory.optimizer.iterations.numpy() == tiered.optimizer.iterations.numpy()
            assert_equal(memory, tiered)
    assert int(_ops.disk_counters().failed) == 0
    iterators = [iter(datasets[1]), iter(datasets[1])]  # two iterators at once
    plain = [iter(data), iter(data)]
    for index in (0, 1, 1, 0, 1, 0, 0):
        tiered.train_on_batch(*next(iterators[index]))
        memory.train_on_batch(*next(plain[index]))
    assert_equal(memory, tiered)


def test_several_steps_at_once_and_eagerly(disk: tsps.Tiered) -> None:
    for options in ({"steps_per_execution": 3}, {"run_eagerly": True}):
        memory, tiered = built("memory", **options), built(disk, **options)
        for model in (memory, tiered):
            data = dataset().repeat() if model is memory else tsps.lookahead(dataset().repeat(), tiered, batches=4)
            model.fit(data, steps_per_epoch=6, epochs=3, verbose=0)
        assert_equal(memory, tiered)


def test_what_cannot_be_is_refused(disk: tsps.Tiered) -> None:
    with pytest.raises(UnsupportedError, match=r"all rows of model .* in this machine"):
        tsps.lookahead(dataset(), built("memory"), batches=4)
    model = built(disk)
    for wrong in (0, -1, 1.5, True, "all", None):
        with pytest.raises(ValueError, match=r"`batches` must be a positive integer or \"auto\""):
            tsps.lookahead(dataset(), model, batches=wrong)
    with pytest.raises(ValueError, match=r"`dataset` must be a tf\.data\.Dataset"):
        tsps.lookahead([1, 2], model, batches=4)
    with pytest.raises(ValueError, match="it looks nothing up"):
        tsps.lookahead(dataset(), sequential(keras.layers.Embedding(5, 2)), batches=4)


def test_shuffled_after_it_the_numbers_are_the_same(disk: tsps.Tiered) -> None:
    memory, tiered = built("memory"), built(disk)
    memory.fit(dataset().shuffle(8, seed=3, reshuffle_each_iteration=False), verbose=0)
    ahead = tsps.lookahead(dataset(), tiered, batches=4)
    tiered.fit(ahead.shuffle(8, seed=3, reshuffle_each_iteration=False), verbose=0)
    assert_equal(memory, tiered)
