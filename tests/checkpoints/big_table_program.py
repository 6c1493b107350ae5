"""A job whose table is too big for the process of a test. The values of its rows follow from their keys.

Arguments: the command; the directory of checkpoints; the number of rows; their width; the rule, "sgd" or "adagrad".
Tables are in TFSPS_DIR.

  save: Fills the table, saves a checkpoint, changes some rows, and saves an increment.
  restore: Restores the checkpoint, and compares every row and slot with the values that were saved.
  fill: Fills the table, prints its size, and trains until it is killed.
  attach: Attaches to the table of a killed job. Prints how long the first lookup took, and how long a reader's opening.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import stored_checkpoint, tables

keras = _keras.keras
BLOCK = 1 << 18  # rows of a block
CHANGED = 1_000  # rows of an increment


def values(keys: np.ndarray, width: int, plane: int) -> np.ndarray:
    """Returns float32[n, width] in [0, 1) for int64[n] keys. `plane`: 0 rows, 1 slots, 2 and 3 changed ones."""
    factors = np.arange(1, width + 1, dtype=np.uint32) * np.uint32(2_654_435_761) + np.uint32(97 * plane)
    mixed = (keys.astype(np.uint32) * np.uint32(40_503) + np.uint32(1))[:, None] * factors
    return (mixed >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def embedding(rows: int, width: int) -> tsps.Embedding:
    """Returns the layer of the table."""
    return tsps.Embedding(None, width, table=tsps.TableConfig("big", width, max_rows=rows + 10, seed=1))


class Job:
    """A model with one table."""

    def __init__(self, rows: int, width: int, rule: str, layer: tsps.Embedding | None = None) -> None:
        self.rows, self.width, self.slots = rows, width, int(rule == "adagrad")
        keras.utils.set_random_seed(1)
        inputs = keras.Input((2,), dtype="int64")
        self.layer = layer or embedding(rows, width)
        self.model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(self.layer(inputs))))
        inner = keras.optimizers.Adagrad(0.1) if self.slots else keras.optimizers.SGD(0.1)
        self.model.compile(tsps.DistributedOptimizer(inner), "mse")

    def train(self) -> None:
        """Makes a step on the first and the last rows."""
        keys = np.array([[0, self.rows - 1], [1, self.rows - 2]])
        self.model.train_on_batch(keys, np.ones((2, 1), np.float32))

    def assign(self, keys: np.ndarray, changed: bool = False) -> None:
        """Sets the values of rows and slots."""
        planes = [values(keys, self.width, 2 * changed + slot) for slot in range(1 + self.slots)]
        tables.of(self.model)[0].assign(keys, planes[0], tuple(planes[1:]))

    def fill(self) -> None:
        """Sets the values of all rows."""
        for start in range(0, self.rows, BLOCK):
            self.assign(np.arange(start, min(start + BLOCK, self.rows), dtype=np.int64))

    def changed(self) -> np.ndarray:
        """Returns the keys of the increment, including those that `train` changes."""
        return np.unique(np.append(np.linspace(0, self.rows - 1, CHANGED).astype(np.int64), [1, self.rows - 2]))


def save(job: Job, path: str) -> None:
    """Runs the command "save"."""
    job.train()  # binds the slots
    job.fill()
    checkpointer = tsps.Checkpointer(path, job.model, job.model.optimizer, background=False)
    began = time.perf_counter()
    checkpointer.save()
    took = time.perf_counter() - began
    file = next(Path(path).glob("step-*/*.tfsps"))
    print(f"saved {file.stat().st_size} bytes in {took:.1f} s", flush=True)
    job.train()
    job.assign(job.changed(), changed=True)
    increment = checkpointer.save()
    content = stored_checkpoint.look(Path(increment)).manifest
    assert content.chain
    assert content.table_bytes < 4 * (CHANGED + 2) * (job.width * (1 + job.slots) + 8)


def restore(job: Job, path: str) -> None:
    """Runs the command "restore"."""
    began = time.perf_counter()
    assert tsps.Checkpointer(path, job.model, job.model.optimizer).restore() is not None
    print(f"restored in {time.perf_counter() - began:.1f} s", flush=True)
    (binding,) = tables.of(job.model)
    changed, n_seen = job.changed(), 0
    with binding.reader().scan(slots=True) as scan:
        for block in scan:
            for slot, plane in enumerate((block.rows, *block.slots)):
                expected = values(block.keys, job.width, slot)
                is_changed = np.isin(block.keys, changed)
                expected[is_changed] = values(block.keys[is_changed], job.width, 2 + slot)
                np.testing.assert_array_equal(plane, expected)
            assert block.keys.max() < job.rows
            n_seen += len(block.keys)
    assert n_seen == len(np.unique(binding.reader().keys())) == job.rows
    last = np.array([[job.rows - 3, job.rows // 2]])
    np.testing.assert_array_equal(job.layer(last)[0], values(last[0], job.width, 0))
    job.train()  # training continues
    assert int(job.model.optimizer.iterations) == tables.committed_step() == 3
    assert binding.reader().verify().problems == ()
    print(f"{n_seen} rows are as they were", flush=True)


def fill(job: Job, _: str) -> None:
    """Runs the command "fill"."""
    job.train()
    job.fill()
    print(f"filled {tables.of(job.model)[0].reader().stats()['bytes']} bytes", flush=True)
    while True:
        job.train()


def attach(rows: int, width: int, rule: str) -> None:
    """Runs the command "attach".

    The first lookup is an eager call of the layer. A model on the layer is made after it: Keras 2 then spends more than
    a second of CPU on the conversion of the layer's Python functions, however small the table is.
    """
    tf.constant(0.0)  # starts TensorFlow
    layer = embedding(rows, width)
    began = time.perf_counter()
    looked_up = layer(np.array([[rows - 3, rows // 2]]))
    took = time.perf_counter() - began
    np.testing.assert_array_equal(looked_up[0], values(np.array([rows - 3, rows // 2]), width, 0))
    job = Job(rows, width, rule, layer)
    (binding,) = tables.of(job.model)
    began = time.perf_counter()
    with tsps.Table.open(binding.path, "r") as reader:
        assert len(reader) == rows
    opened = time.perf_counter() - began
    job.train()
    print(f"attached in {took:.3f} s, opened in {opened:.3f} s, at step {tables.committed_step() - 1}", flush=True)


def main() -> None:
    """Runs the command that the arguments name."""
    command, path, rows, width, rule = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    if command == "attach":
        attach(rows, width, rule)
        return
    act: Any = {"save": save, "restore": restore, "fill": fill}[command]
    act(Job(rows, width, rule), path)


if __name__ == "__main__":
    main()
