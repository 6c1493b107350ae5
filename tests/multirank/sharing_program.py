"""One rank of the sharing and failure tests: trains a table, reports, and then trains until it is killed.

Arguments: "plain" or "fork" (the leader forks a child that keeps its sockets), the folder for results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops

keras = tf.keras
ROWS, DIM, STEPS = 100_000, 32, 20


def mapped_kib(group: str) -> dict[str, int]:
    """Returns the sums of Rss and Pss of this process's mappings of the group's files, in KiB."""
    sums, inside = {"Rss": 0, "Pss": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and ":" not in head[0]:
            inside = len(head) > 5 and head[5].startswith(group)
        elif inside and head[0].rstrip(":") in sums:
            sums[head[0].rstrip(":")] += int(head[1])
    return sums


def main() -> None:
    """Trains every row, reports, and trains until the process is killed."""
    this_rank.init()
    mode, folder = sys.argv[1], Path(sys.argv[2])
    rank = this_rank.rank()
    job = tsps.job.current()
    layer = tsps.Embedding(ROWS, DIM)
    layer.build(None)
    dense = tf.Variable(tf.ones([8]))
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) ** 2) + tf.reduce_sum(dense**2)
        variables = [*layer.trainable_variables, dense]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    share = ROWS // STEPS
    for i in range(STEPS):
        step(tf.range(i * share, (i + 1) * share, dtype=tf.int64))
    # Reads everything, so that every rank has mapped every page.
    for start in range(0, ROWS, 10_000):
        layer(tf.range(start, start + 10_000, dtype=tf.int64))
    job.collectives.barrier("test.read")
    counters = dict(zip(_ops.COUNTERS, _ops.group_info(job.group_path).counters.numpy().tolist(), strict=True))
    report = {
        "pid": os.getpid(),
        "leader": job.is_leader,
        "group": job.group_path,
        "step": int(job.step.numpy()),
        "mapped": mapped_kib(job.group_path),
        "counters": counters,
        "rows_first": np.asarray(layer(tf.constant([0, ROWS - 1], tf.int64))).tolist(),
    }
    (folder / f"report-{rank}.json").write_text(json.dumps(report))
    job.collectives.barrier("test.reported")
    if mode == "fork" and job.is_leader and os.fork() == 0:
        time.sleep(120)  # keeps every socket and lock of the leader open
        os._exit(0)
    print(f"READY {rank}", flush=True)
    while True:
        step(tf.range(100, dtype=tf.int64))
        steps_made = int(job.step.numpy())
        (folder / f"step-{rank}").write_text(str(steps_made))
        if rank == 0 and steps_made == STEPS + 50:
            print(f"STEP {steps_made}", flush=True)


if __name__ == "__main__":
    main()
