"""One rank of the job that is killed while nodes with sharded tables make a step together (`tests/crash/nodes.py`).

The program prints its node's step and the contents of its tables, and then trains. A step's gradients depend only on
the rank and the step, so every step has one outcome, whatever happened before.

Arguments: "memory" or "tiered"; the rank that is killed, -1: none; the fault point and its passage that kill it
(TFSPS_FAULT_KILL), or the seconds of training after which it kills itself; the number of steps; "each" to print the
contents of the tables after every step; a folder for rows on disk, the same for all runs of a job; the folder for
results.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import job
from tf_sparse_ps.config.placement import Sharded

DIM, IDS, ROWS = 4, 3000, 300
MEMORY = 1_790_000  # bytes of a tiered table: 1.5 MiB of buffers, and space for some of the rows


def digest(layers: list[tsps.Embedding]) -> str:
    """Returns a digest of keys, rows and slots of this node."""
    hasher = hashlib.sha256()
    for layer in layers:
        reader = layer.bindings[0].reader()
        keys = np.sort(reader.keys())
        _, rows, slots = reader.entries(keys)
        for array in (keys, rows, *slots):
            hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()[:16]


def main() -> None:
    storage, victim, how, steps, report_steps, folder, _ = sys.argv[1:]
    number = this_rank.number()
    killed = number == int(victim)
    if killed and ":" in how:
        os.environ["TFSPS_FAULT_KILL"] = how
    ranks = this_rank.init()
    disk = tsps.Tiered(Path(folder), memory=MEMORY) if storage == "tiered" else "memory"
    begin = {"initializer": tf.keras.initializers.Constant(0.5), "seed": 7}
    spread = tsps.TableConfig("spread", DIM, placement=Sharded(), storage=disk, **begin)
    there = tsps.TableConfig("there", DIM, **begin)
    layers = [tsps.Embedding(None, DIM, table=config) for config in (spread, there)]
    weight = tf.Variable([1.0])
    optimizer = tsps.DistributedOptimizer(tf.keras.optimizers.Adagrad(0.1))

    @tf.function(
        input_signature=[tf.TensorSpec([ROWS], tf.int64), tf.TensorSpec([ROWS, DIM]), tf.TensorSpec([], tf.int64)]
    )
    def step(ids: tf.Tensor, factors: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # This does not use the rank's weight, which is lost with the process: rows must not depend on it.
            loss = sum(tf.reduce_sum(layer(ids) * factors) for layer in layers) + tf.reduce_sum(weight) * 0.1
        variables = [weight, *(layer.trainable_variables[0] for layer in layers)]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return number

    for layer in layers:
        layer(tf.zeros([1], tf.int64))
    group, leader = job.current().group, ranks.local_rank == 0
    begun = group.committed_step()
    # No checkpoint has the optimizer's steps. At step 0 it would start new slots (docs/training-reference.md).
    optimizer.iterations.assign(begun)
    if leader:
        print(f"node {job.current().node} has step {begun}: {digest(layers)}", flush=True)
    ranks.barrier("test.begun")
    if killed and ":" not in how:
        threading.Timer(float(how), os.kill, (os.getpid(), signal.SIGKILL)).start()
    for number_of_step in range(begun + 1, begun + int(steps) + 1):
        random = np.random.default_rng([ranks.rank, number_of_step])
        ids = (random.zipf(1.3, ROWS) * 7919) % IDS
        factors = random.normal(size=(ROWS, DIM)).astype(np.float32)
        step(tf.constant(ids, tf.int64), tf.constant(factors), tf.constant(number_of_step, tf.int64))
        if leader and report_steps == "each":
            print(f"node {job.current().node} has step {number_of_step}: {digest(layers)}", flush=True)
        print(f"made {number_of_step}", flush=True)
    ranks.barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
