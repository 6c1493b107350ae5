"""One rank of the suite `scans`: trains one table at full speed with known gradients, until it is stopped.

The suite starts both ranks in one folder. Rank 0 writes `ready.json` there when the table has its rows. The job ends
when the folder has a file `stop`. The job trains only the table, because a model would make its steps longer and its
writes rarer.
"""

from __future__ import annotations

import json
import os

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import harness, scan_content
from benchmarks.job_sizes import DIM

_FILL = 1 << 16  # rows per step and rank
_STEPS = 16  # steps after which the job checks whether to stop


def main() -> None:
    """Fills the table, and trains it."""
    options = harness.job_options(__doc__)
    ranks = tsps.init()
    sizes = scan_content.QUICK if options.quick else scan_content.FULL
    layer = tsps.Embedding(None, DIM, embeddings_initializer="zeros")
    layer(tf.constant([0], tf.int64))
    optimizer = tsps.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), sparse_optimizer=scan_content.RULE)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None])])
    def step(keys: tf.Tensor, gradients: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            rows = layer(keys)
        variables = layer.trainable_variables
        row_gradients = tf.broadcast_to(gradients[:, None], tf.shape(rows))
        optimizer.apply_gradients(
            list(zip(tape.gradient(rows, variables, output_gradients=row_gradients), variables, strict=True))
        )

    own_keys = np.arange(ranks.rank, sizes.rows, ranks.size)
    for part in np.array_split(own_keys, -(-sizes.rows // (ranks.size * _FILL))):
        step(tf.constant(part), tf.constant(scan_content.first_gradient(part), tf.float32))
    batches = scan_content.Batches(sizes)
    pids = ranks.allgather_object(os.getpid(), "bench.filled")
    if ranks.rank == 0:
        table = layer.bindings[0].reader()
        ready = options.folder / "ready.part"
        ready.write_text(json.dumps({"table": table.path, "step": table.step, "pids": pids}))
        ready.rename(options.folder / "ready.json")
    ranks.barrier("bench.ready")
    n = 0
    while not ranks.broadcast_object((options.folder / "stop").exists(), 0, "bench.stop"):
        for _ in range(_STEPS):
            n += 1
            keys = batches.of_rank(n, ranks.rank)
            step(tf.constant(keys), tf.ones([len(keys)]))


if __name__ == "__main__":
    main()
