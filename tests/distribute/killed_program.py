"""A worker of the sharing and failure tests. It trains a table, reports, and trains until it is ended.

Argument: the folder for results.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import tensorflow as tf

import tf_sparse_ps as tsps

keras = tf.keras
ROWS, DIM, STEPS = 50_000, 32, 10


def mapped_kib(group: str) -> dict[str, int]:
    """Returns the sums of Rss and Pss over this process's mappings of the group's files, in KiB."""
    sums, inside = {"Rss": 0, "Pss": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and ":" not in head[0]:
            inside = len(head) > 5 and head[5].startswith(group)
        elif inside and head[0].rstrip(":") in sums:
            sums[head[0].rstrip(":")] += int(head[1])
    return sums


def main() -> None:
    """Trains every row, reports, and continues to train."""
    folder = Path(sys.argv[1])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layer = tsps.Embedding(ROWS, DIM)
        layer.build(None)
        dense = tf.Variable(tf.ones([8]))
        optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1))
    job = tsps.job.current()

    def replica_step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) ** 2) + tf.reduce_sum(dense**2)
        variables = [*layer.trainable_variables, dense]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids: tf.Tensor) -> None:
        strategy.run(replica_step, args=(ids,))

    share = ROWS // STEPS
    for i in range(STEPS):
        step(tf.range(i * share, (i + 1) * share, dtype=tf.int64))
    # Reads everything, so that every worker maps every page.
    layer(tf.range(ROWS, dtype=tf.int64))
    job.collectives.barrier("test.read")
    report = {"pid": os.getpid(), "group": job.group_path, "mapped": mapped_kib(job.group_path)}
    (folder / f"report-{job.rank}.json").write_text(json.dumps(report))
    job.collectives.barrier("test.reported")
    for i in itertools.count():
        step(tf.range(100, dtype=tf.int64))
        if i == 20:  # training is well under way
            print(f"READY {job.rank}", flush=True)


if __name__ == "__main__":
    main()
