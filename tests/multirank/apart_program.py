"""Ranks that take different paths: the first argument names what happens to the last rank, or to rank 0.

"callbacks" begins `fit` differently in several ways, one after another, and every rank records the outcome of each. The
other arguments end the job, or must not: see `test_ranks_that_take_different_paths.py`. The last argument is the folder
for results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps

keras = tf.keras
IDS, TARGETS = np.arange(8).reshape(4, 2), np.ones((4, 1), np.float32)


def is_last() -> bool:
    return this_rank.rank() == this_rank.size() - 1


def model(tables: int = 1) -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input([2], dtype="int64")
    parts = [keras.layers.Flatten()(tsps.Embedding(None, 4, name=f"table{i}")(inputs)) for i in range(tables)]
    joined = keras.layers.Concatenate()(parts) if tables > 1 else parts[0]
    new_model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    new_model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return new_model


def batches(_: int = 0) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(2)


# --- fits that begin differently ---


def fit(callbacks: list[Any] | None = None, *, epochs: int = 1, data: Any = None) -> None:
    model().fit(batches() if data is None else data, callbacks=callbacks or [], epochs=epochs, verbose=0)


def import_on_one_rank() -> None:
    if this_rank.rank() == 0:
        assert "tf_sparse_ps.callbacks" not in sys.modules
        assert tsps.callbacks
    fit()


def average_on_one_rank() -> None:
    fit([tsps.callbacks.MetricAverage()] if is_last() else [])


def drain_on_one_rank() -> None:
    """Draining makes no collective under this schedule."""
    fit([tsps.callbacks.Drain()] if is_last() else [])


def other_order() -> None:
    callbacks = [tsps.callbacks.MetricAverage(), tsps.callbacks.BroadcastVariables()]
    fit(callbacks[::-1] if is_last() else callbacks)


def other_root() -> None:
    fit([tsps.callbacks.BroadcastVariables(root=int(is_last()))])


def other_option() -> None:
    checkpoint = tsps.callbacks.Checkpoint("/dev/null/never-made", every_steps=3 if is_last() else 2)
    fit([checkpoint], data=checkpoint.dataset(batches))


def other_number_of_steps() -> None:
    fit(epochs=2 if is_last() else 1)


def refused_on_one_rank() -> None:
    fit([keras.callbacks.EarlyStopping("loss", restore_best_weights=True)] if is_last() else [])


def exception_with_equal_steps() -> None:
    """The last rank has fewer batches, and the last batch of rank 0 is refused. Then all train with weight 1."""
    trained = model()
    data = tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(2)
    if this_rank.rank() == 0:
        data = data.concatenate(tf.data.Dataset.from_tensor_slices((IDS[:2], TARGETS[:2] * np.nan)).batch(2))
    equal = tsps.callbacks.EqualSteps(data)
    try:
        trained.fit(equal.dataset, callbacks=[equal], verbose=0)
    except tf.errors.InvalidArgumentError:
        pass
    else:
        raise AssertionError("a step with a loss of NaN was made")
    key = 50 + this_rank.rank()
    trained.fit(np.full((4, 2), key), np.full((4, 1), 5.0), batch_size=2, verbose=0)
    tsps.collectives.current().barrier("test.trained")
    rows = np.asarray(trained.layers[1](50 + np.arange(this_rank.size())))
    still = np.asarray(tsps.Embedding(None, 4, name="other")(tf.constant([0])))  # all ranks make it
    assert still.shape == (1, 4)
    moved = [float(np.abs(row).max()) for row in rows]
    assert min(moved) > 0.3, f"rows of ranks that trained nothing: {moved}"


WAYS: list[Callable[[], None]] = [
    import_on_one_rank,
    average_on_one_rank,
    drain_on_one_rank,
    other_order,
    other_root,
    other_option,
    other_number_of_steps,
    refused_on_one_rank,
    exception_with_equal_steps,
]


def callbacks(folder: Path) -> None:
    outcomes = this_rank.outcomes_of(WAYS)
    (folder / f"outcomes-{this_rank.rank()}.json").write_text(json.dumps(outcomes))
    tsps.collectives.current().barrier("test.written")


# --- waits ---


def layer(_: Path) -> None:
    """The last rank builds an additional layer."""
    model(2 if is_last() else 1).fit(batches(), verbose=0)


def collective(_: Path) -> None:
    """The last rank does not reach a collective that the others run eagerly."""
    tsps.collectives.current().barrier("test.before")
    if is_last():
        time.sleep(600)  # the other ranks name this line
    tsps.collectives.current().barrier("test.barrier")


def raises(_: Path) -> None:
    """The last rank ends with an error before the first step."""
    if is_last():
        raise ValueError("no such shard")
    model().fit(batches(), verbose=0)


def folders(_: Path) -> None:
    """Ranks of one machine have different folders of tables."""
    if is_last():
        os.environ["TFSPS_DIR"] += "/other"
    model().fit(batches(), verbose=0)


def restore(folder: Path) -> None:
    """The leader reads a checkpoint for longer than ranks wait for each other, but it makes progress."""
    timeout_s = float(os.environ["TFSPS_TIMEOUT_S"])
    first = tsps.Checkpointer(folder / "checkpoints", trained := model(), trained.optimizer)
    trained.fit(batches(), verbose=0)
    first.save()
    first.wait()
    from tf_sparse_ps.checkpoints import tables

    read = tables.joined

    def slowly(blocks: Iterator[Any]) -> Iterator[Any]:
        for block in read(blocks):
            parts = len(block.keys)
            assert parts == 8
            for i in range(parts):
                time.sleep(timeout_s / 4)
                part = slice(i, i + 1)
                yield block._replace(
                    keys=block.keys[part], rows=block.rows[part], slots=tuple(slot[part] for slot in block.slots)
                )

    tables.joined = slowly
    restored_model = model()
    began = time.monotonic()
    assert tsps.Checkpointer(folder / "checkpoints", restored_model, restored_model.optimizer).restore()
    assert time.monotonic() - began > 2 * timeout_s
    restored_model.fit(batches(), verbose=0)
    assert int(restored_model.optimizer.iterations) == 4


def evaluates(_: Path) -> None:
    """Rank 0 evaluates alone, for longer than ranks wait for each other, while the others are in the next step."""
    trained = model()
    trained.fit(batches(), verbose=0)

    def evaluate(pause_s: float) -> None:
        def slow() -> Iterator[Any]:
            for _ in range(8):
                time.sleep(pause_s)
                yield IDS, TARGETS

        types = (tf.TensorSpec([4, 2], tf.int64), tf.TensorSpec([4, 1], tf.float32))
        data = tf.data.Dataset.from_generator(slow, output_signature=types)
        # Under TensorFlow 2.15, the thread that tunes a dataset looks at it at doubling intervals. It may miss that the
        # dataset is deleted, and then `evaluate` returns only when it looks again, here after 8 s.
        options = tf.data.Options()
        options.autotune.enabled = False
        trained.evaluate(data.with_options(options), verbose=0)

    # On a busy machine, tracing takes longer than ranks wait.
    evaluate(0.0)
    trained.train_on_batch(IDS, TARGETS)
    if this_rank.rank() == 0:
        evaluate(float(os.environ["TFSPS_TIMEOUT_S"]) / 4)
    trained.train_on_batch(IDS, TARGETS)
    assert int(trained.optimizer.iterations) == 4


def main() -> None:
    this_rank.init()
    globals()[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
