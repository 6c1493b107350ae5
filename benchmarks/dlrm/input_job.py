"""One rank of the suite `input`: trains the DLRM of `make train`, and measures how long a step waits for its batch."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks.harness import Cycle
from ctr import job
from ctr.models import Dlrm
from support import launch

_WARMUP = 5
_KEPT = 8  # batches that take turns where no input is read


def main() -> None:
    """Trains. Rank 0 writes the figures, means over the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=("generator", "criteo", "avazu"))
    parser.add_argument("--path", type=Path, help="the data of sources that read files")
    parser.add_argument("--save", type=Path, help="parse the data once, and read it from files in this folder")
    parser.add_argument("--batch", type=int, required=True, help="samples of a rank in each step")
    parser.add_argument("--steps", type=int, required=True, help="timed steps")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file that rank 0 writes")
    options = parser.parse_args()

    import tf_sparse_ps as tsps

    ranks = launch.begin_rank(seed=0)
    samples = options.batch * ranks.size * (options.steps + _WARMUP)
    settings = {"data": options.data, "path": options.path, "test_path": None, "seed": 0}
    data = job.open_data(argparse.Namespace(**settings, samples=samples, test_samples=2))
    dataset, _ = data.train(options.batch, ranks.rank, ranks.size)
    if options.save:
        path = str(options.save / str(ranks.rank))
        dataset.save(path)
        dataset = tf.data.Dataset.load(path)
    model = Dlrm(data.features, 16)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adam(0.004))

    @tf.function
    def step(inputs: Any, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    batches = iter(dataset.repeat())
    kept = [next(batches) for _ in range(_KEPT)]
    waited, total = _train(lambda: next(batches), step, options.steps)
    _, without = _train(Cycle(kept), step, options.steps)
    everywhere = ranks.allgather_object((waited, total, without), "bench.input")
    if ranks.rank == 0:
        waited, total, without = (sum(figures) / ranks.size for figures in zip(*everywhere, strict=True))
        figures = {"wait": 100 * waited / total, "step": total * 1e3, "kept": without * 1e3}
        options.out.write_text(json.dumps(figures))


def _train(next_batch: Callable[[], Any], step: Callable[..., Any], steps: int) -> tuple[float, float]:
    """Returns the seconds per step that were waited for batches, and the seconds per step."""
    for _ in range(_WARMUP):
        step(*next_batch())
    waited, began = 0.0, time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next_batch()
        waited += time.perf_counter() - asked
        step(*batch)
    return waited / steps, (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main()
