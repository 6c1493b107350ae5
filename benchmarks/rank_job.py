"""One rank of a job of the ranks suite: 26 ids per sample from one table of 1M x 64, their mean, a small MLP."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.harness import Cycle, zipf_ids

FIELDS, DIM = 26, 64
RATE = 0.01
_WARMUP = 5


def main() -> None:
    """Trains some steps and writes the figures of rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("shared", "replicated"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    rows, batch, count = (10_000, 256, 5) if options.quick else (1_000_000, 4_096, 40)

    kind = _shared if options.kind == "shared" else _replicated
    rank, size, step, gather = kind(rows)
    ids = zipf_ids(rows, batch * FIELDS, batches=8, seed=rank)
    labels = np.random.default_rng(rank).integers(0, 2, (batch, 1)).astype(np.float32)
    following = Cycle([(tf.constant(one.reshape(batch, FIELDS)), tf.constant(labels)) for one in ids])
    if options.kind == "shared":  # rows appear when they are first trained: the peer has all of them from the start
        fill = np.arange(rows)[rank::size]
        fill = np.resize(fill, -(-fill.size // (batch * FIELDS)) * batch * FIELDS)
        for part in fill.reshape(-1, batch, FIELDS):
            step(tf.constant(part), tf.constant(labels))
    times = []
    for number in range(_WARMUP + count):
        began = time.perf_counter()
        step(*following())
        if number >= _WARMUP:
            times.append(time.perf_counter() - began)
    pss = sum(gather(_pss()))
    if rank == 0:
        median = statistics.median(times)
        figures = {"step_ms": median * 1e3, "samples_per_second": size * batch / median, "pss_mib": pss / 2**20}
        options.out.write_text(json.dumps(figures))


def _model(embedding: Any) -> keras.Model:
    model = keras.Sequential(
        [
            embedding,
            keras.layers.Lambda(lambda rows: tf.reduce_mean(rows, axis=1)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model(tf.zeros([1, FIELDS], tf.int64))
    return model


def _loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def _shared(rows: int) -> tuple[int, int, Callable[..., Any], Callable[[int], list[int]]]:
    import tf_sparse_ps as tsps

    if "HOROVOD_RANK" in os.environ:
        import horovod.tensorflow as hvd

        hvd.init()
    ranks = tsps.collectives.current()
    model = _model(tsps.Embedding(None, DIM))
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(RATE))

    @tf.function(reduce_retracing=True)
    def step(ids: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = _loss(labels, model(ids, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    return ranks.rank, ranks.size, step, lambda pss: ranks.allgather_object(pss, "bench.pss")


def _replicated(rows: int) -> tuple[int, int, Callable[..., Any], Callable[[int], list[int]]]:
    import horovod.tensorflow as hvd

    hvd.init()
    model = _model(keras.layers.Embedding(rows, DIM))
    optimizer = keras.optimizers.Adagrad(RATE)

    @tf.function(reduce_retracing=True)
    def step(ids: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = _loss(labels, model(ids, training=True))
        variables = model.trainable_variables
        gradients = [
            # Horovod's own wrapper reduces nothing with Keras 3, so the collectives are called here.
            hvd.allreduce(gradient, op=hvd.Average, name=f"gradient_{number}")
            for number, gradient in enumerate(tape.gradient(loss, variables))
        ]
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    return hvd.rank(), hvd.size(), step, lambda pss: hvd.allgather(tf.constant([pss])).numpy().tolist()


def _pss() -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
