"""A custom training loop resumes after the last batch that it took, whatever batches it makes updates from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tf_sparse_ps as tsps

pytestmark = pytest.mark.keras2_smoke

keras = tf.keras
Batch = tuple[tf.Tensor, tf.Tensor]


def make(_: int) -> tf.data.Dataset:
    """Returns a dataset whose batch b has the ids 2 b and 2 b + 1."""
    return tf.data.Dataset.range(100).batch(2).map(lambda ids: (ids, tf.ones([2, 1])))


def number(batch: Batch) -> int:
    return int(batch[0][0]) // 2


class Loop:
    """A model, its optimizer and their checkpoints."""

    def __init__(self, folder: Path) -> None:
        inputs = keras.Input((), dtype="int64")
        self.model = keras.Model(inputs, keras.layers.Dense(1)(tsps.Embedding(1000, 4)(inputs)))
        self.optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))
        self.checkpointer = tsps.Checkpointer(str(folder), self.model, self.optimizer)
        self.checkpointer.restore()
        self.batches = self.checkpointer.dataset(make)

    def update(self, *batches: Batch, factor: float = 1.0) -> None:
        with tf.GradientTape() as tape:
            loss = factor * tf.add_n([tf.reduce_mean((self.model(ids) - targets) ** 2) for ids, targets in batches])
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def save(self) -> None:
        self.checkpointer.save()
        self.checkpointer.wait()

    def next_batch(self) -> int:
        return number(next(iter(self.batches)))


def two_per_update(loop: Loop) -> int:
    batches = iter(loop.batches)
    for _ in range(3):
        last = next(batches)
        last = (batch_before := last) and next(batches)
        loop.update(batch_before, last)
    return number(last)


def some_are_refused(loop: Loop) -> int:
    for i, batch in enumerate(loop.batches):
        if i in (1, 3):
            with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
                loop.update(batch, factor=float("nan"))
        elif i != 4:  # the loop skips batch 4
            loop.update(batch)
        if i == 6:
            break
    return number(batch)


def behind_another_stage(loop: Loop) -> int:
    for i, batch in enumerate(loop.batches.prefetch(4)):
        loop.update(batch)
        if i == 4:
            break
    return number(batch)


def in_a_function(loop: Loop) -> int:
    loop.optimizer.build(loop.model.trainable_variables)

    @tf.function
    def train(batches: Any) -> tf.Tensor:
        last = tf.constant(0, tf.int64)
        for _ in range(3):
            ids, targets = next(batches)
            loop.update((ids, targets))
            last = ids[0]
        return last

    batches = iter(loop.batches)
    train(batches)
    return int(train(batches)) // 2


@pytest.mark.parametrize("way", [two_per_update, some_are_refused, behind_another_stage, in_a_function])
def test_a_restart_goes_on_after_the_last_batch(tmp_path: Path, way: Callable[[Loop], int]) -> None:
    loop = Loop(tmp_path)
    last = way(loop)
    assert last > 3
    loop.save()
    again = Loop(tmp_path)
    assert again.next_batch() == last + 1
    # A second restart works in the same way.
    last = way(again)
    again.save()
    assert Loop(tmp_path).next_batch() == last + 1


def test_epochs_are_counted_by_themselves(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    for epoch in loop.checkpointer.epochs(3):
        numbers = []
        for batch in loop.batches:
            numbers.append(number(batch))
            if len(numbers) % 2 == 0:
                loop.update(batch)
            if (epoch, len(numbers)) == (1, 7):
                loop.save()
        assert numbers == list(range(50))
    assert int(loop.optimizer.iterations) == 75
    resumed = Loop(tmp_path)
    assert (resumed.checkpointer.position.epoch, resumed.next_batch()) == (1, 7)
