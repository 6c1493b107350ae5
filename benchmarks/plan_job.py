"""One rank of the job "two ranks" of `benchmarks.plan_cases`: an Embedding layer, and a step without a model."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import plan_cases


def main() -> None:
    """Trains some steps. Rank 0 writes the milliseconds of a step, and the bytes of the table."""
    case, out = plan_cases.Case(**json.loads(sys.argv[1])), Path(sys.argv[2])
    tf.config.threading.set_intra_op_parallelism_threads(max(1, plan_cases.cores() // case.ranks))
    ranks = tsps.init()
    (config,) = plan_cases.configs(case, None)
    layer = tsps.Embedding(None, config.dim, table=config)
    layer.build(None)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.01))  # the table has a rule of its own
    gradients = tf.fill([case.ids, config.dim], 1e-3)

    @tf.function(reduce_retracing=True)
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            rows = layer(ids)
        variables = layer.trainable_variables
        of_rows = tape.gradient(rows, variables, output_gradients=gradients[: tf.shape(ids)[0]])
        optimizer.apply_gradients(list(zip(of_rows, variables, strict=True)))

    keys = np.random.default_rng(1).permutation(case.rows)[ranks.rank :: ranks.size]
    for part in np.array_split(keys, -(-len(keys) // plan_cases.FILL)):
        step(tf.constant(part))
    times = []
    for number, ids in enumerate(plan_cases.zipf_ids(case, 5 + ranks.rank)):
        batch = tf.constant(ids)
        begin = time.perf_counter()
        step(batch)
        if number >= plan_cases.WARMUP:
            times.append(time.perf_counter() - begin)
    # A rank may run ahead of the leader by a part of a step, so a single step may look too short.
    figures = {"ms": 1e3 * float(np.quantile(times, 0.25))}
    ranks.barrier("bench.plan")
    if ranks.rank == 0:
        figures["bytes"] = tsps.Table.open(layer.bindings[0].path).stats()["bytes"]
        out.write_text(json.dumps(figures))
    ranks.barrier("bench.plan_read")


if __name__ == "__main__":
    main()
