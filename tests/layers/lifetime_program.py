"""Builds, trains and drops one model after another, on one or several ranks. The resources in use must not grow.

Arguments: the number of models; the folder for results, unused. A function that was traced before all models still
serves at the end, and its table is freed with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps import job

keras = tf.keras
tf.get_logger().setLevel("ERROR")  # TensorFlow warns of functions that are traced repeatedly
IDS = np.arange(64 * 3).reshape(64, 3) * 7919
FIRST = 3  # after so many models, everything that is made once exists

LONGEST_REQUEST_S = 2.0  # a thread of the library has a connection to the key-value store for at most this long


class Usage(NamedTuple):
    """The resources that tables use.

    Attributes:
      bytes: The size of all files in TFSPS_DIR, without the leader's list of writes (tf_sparse_ps/job/session.py).
      mappings: The number of mappings of those files in this process.
      descriptors: The number of descriptors that stay open in this process.
    """

    bytes: int
    mappings: int
    descriptors: int


def usage() -> Usage:
    root = os.environ["TFSPS_DIR"]
    files = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
    files.remove(session_path())
    with open("/proc/self/maps") as maps:
        mappings = sum(root in line for line in maps)
    before = descriptors()
    time.sleep(LONGEST_REQUEST_S)
    return Usage(sum(os.stat(file).st_blocks * 512 for file in files), mappings, len(before & descriptors()))


def descriptors() -> set[tuple[str, str]]:
    """Returns the open descriptors, with what they refer to."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def session_path() -> str:
    return job.current().group.session.path


def tables() -> set[str]:
    return {name for name in os.listdir(job.current().group_path) if name.startswith("t")}


def settle(expected: set[str], meet: Any) -> Usage:
    """Waits until only the expected tables are left, on all ranks. No rank makes a table meanwhile."""
    keras.backend.clear_session()
    gc.collect()
    deadline = time.monotonic() + 60
    while tables() != expected:
        assert time.monotonic() < deadline, f"there are {tables()}, expected {expected}"
        time.sleep(0.005)
    meet()
    usage_now = usage()
    meet()
    return usage_now


def serving() -> tuple[Any, Any, str]:
    """Returns a function of a dropped layer, its expected result, and its table."""
    layer = tsps.Embedding(None, 4)
    layer.build(None)
    layer.bindings[0].assign(np.arange(5), np.arange(20, dtype=np.float32).reshape(5, 4))
    serve = tf.function(lambda ids: layer(ids)).get_concrete_function(tf.TensorSpec([None], tf.int64))
    return serve, serve(tf.range(8, dtype=tf.int64)).numpy(), os.path.basename(layer.bindings[0].path)


def train_one() -> None:
    inputs = keras.Input((3,), dtype="int64")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(tsps.Embedding(None, 8)(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    # The data is not shuffled: the files for exchanging gradients have the size of the largest batch.
    model.fit(IDS, np.ones((64, 1), np.float32), batch_size=32, shuffle=False, verbose=0)


def main(models: int) -> None:
    ranks = tsps.init()

    def meet() -> None:
        ranks.barrier("test.meet")

    serve, rows, table_kept = serving()
    before: Usage | None = None
    for i in range(models):
        train_one()
        if i + 1 == FIRST:
            before = settle({table_kept}, meet)
        else:
            keras.backend.clear_session()
            gc.collect()
    after = settle({table_kept}, meet)
    print(f"rank {ranks.rank}: {before} after {FIRST} models, {after} after {models}", flush=True)
    assert after == before
    assert os.path.getsize(session_path()) <= 16 * (models + 8), "a table that is made takes 16 bytes there"
    np.testing.assert_array_equal(serve(tf.range(8, dtype=tf.int64)).numpy(), rows)
    del serve
    assert settle(set(), meet).bytes < after.bytes
    print("rank is done", flush=True)


if __name__ == "__main__":
    assert Path(sys.argv[-1]).exists()
    main(int(sys.argv[1]))
