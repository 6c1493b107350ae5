"""One rank of a job that makes its steps in several ways, in turn: computing alone, communicating alone, and both.

The suite `delayed` starts it. Every way has its own model of the same size: an MLP of 1.6 million weights, with
`--tables` on a table of 8 ids per sample.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import spans
from benchmarks.harness import Cycle, zipf_ids
from tf_sparse_ps import _ops

keras = tf.keras
FIELDS, DIM, HIDDEN, ROWS, BATCH = 8, 64, 1024, 200_000, 1024
_WARMUP, _BATCHES = 3, 4
# A late rank pauses in this share of its steps, for this many times the time that computing takes.
_LATE_SHARE, _LATE_TIMES = 0.25, 1.0


def main() -> None:
    """Times the ways in interleaved blocks and writes rank 0's figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--ways", required=True, help="comma-separated: computing, communication, synchronous, delayed-S"
    )
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--late", action="store_true", help="every rank pauses in some steps")
    parser.add_argument("--steps", type=int, default=10, help="steps of a block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--record", help="the way of which some steps are recorded")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    tsps.init()
    ranks = tsps.collectives.current()
    ways = {name: Way(name, options.tables, options.batch) for name in options.ways.split(",")}
    batches = Cycle(_make_batches(options.tables, options.batch, ranks.rank))
    for way in ways.values():
        for _ in range(_WARMUP):
            way.step(*batches())
        way.drain()
    pause = Pause(ways["computing"], batches, ranks.rank) if options.late else None
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for block in range(options.blocks):
        for name in list(ways) if block % 2 == 0 else reversed(list(ways)):
            ranks.barrier("bench.block")
            figures[name].append(_block(ways[name], batches, options.steps, pause))
            ways[name].drain()
    document: dict[str, Any] = {"step_ms": figures}
    if options.record:
        ranks.barrier("bench.record")
        spans.start()
        _block(ways[options.record], batches, 5, None)
        document["spans"] = ranks.allgather_object(spans.stop(), "bench.spans")
        ways[options.record].drain()
    if ranks.rank == 0:
        options.out.write_text(json.dumps(document))


def _block(way: Way, batches: Cycle[Any], steps: int, pause: Pause | None) -> float:
    """Returns milliseconds per step. The first steps are not counted, because they do not wait for anything yet."""
    for _ in range(way.staleness + 2):
        way.step(*batches())
    began = time.perf_counter()
    for _ in range(steps):
        if pause is not None:
            pause()
        way.step(*batches())
    return (time.perf_counter() - began) * 1e3 / steps


class Pause:
    """Pauses this rank in some steps, for as long as computing a step takes."""

    def __init__(self, computing: Way, batches: Cycle[Any], rank: int) -> None:
        """Times some steps of `computing`."""
        self._seconds = _block(computing, batches, 5, None) * 1e-3 * _LATE_TIMES
        self._random = np.random.default_rng(rank)

    def __call__(self) -> None:
        """Sleeps, or returns at once."""
        if self._random.random() < _LATE_SHARE:
            time.sleep(self._seconds)


class Way:
    """A model, and a way to make its steps.

    Attributes:
        staleness: The staleness of the schedule; 0: the schedule is synchronous.
    """

    def __init__(self, name: str, tables: bool, batch: int) -> None:
        """Makes the model. `main` lists the names of ways."""
        rows = keras.layers.Input((FIELDS,), dtype="int64") if tables else keras.layers.Input((FIELDS * DIM,))
        x = keras.layers.Flatten()(tsps.Embedding(None, DIM)(rows)) if tables else rows
        for width in (HIDDEN, HIDDEN):
            x = keras.layers.Dense(width, activation="relu")(x)
        self._model = keras.Model(rows, keras.layers.Dense(1)(x))
        self._inner = keras.optimizers.Adagrad(0.001)
        self.staleness = int(name.partition("-")[2] or 0)
        schedule = tsps.schedules.DelayedGlobal(self.staleness, cycle=1 << 30) if self.staleness else None
        self._optimizer = tsps.DistributedOptimizer(self._inner, schedule=schedule)
        self._held: list[tuple[Any, Any]] = []  # gradients that were computed in advance
        make: dict[str, Callable[..., Any]] = {"computing": self._compute, "communication": self._communicate}
        self.step = tf.function(make.get(name, self._train), reduce_retracing=True)
        if name == "communication":
            self._hold(*_make_batches(tables, batch, tsps.collectives.current().rank)[0])

    def drain(self) -> None:
        """See `DistributedOptimizer.drain`."""
        self._optimizer.drain()

    def _gradients(self, x: tf.Tensor, y: tf.Tensor) -> tuple[list[tuple[Any, Any]], tf.Tensor]:
        """Returns gradients with variables, and the loss. Without the loss, the mark at the end would not run."""
        x = _ops.mark(x, "computing", "begin", self._optimizer.iterations)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self._model(x, training=True) - y) ** 2)
        variables = self._model.trainable_variables
        gradients = tape.gradient(loss, variables)
        with tf.control_dependencies(list(tf.nest.flatten(gradients, expand_composites=True))):
            loss = _ops.mark(tf.identity(loss), "computing", "end", self._optimizer.iterations)
        return list(zip(gradients, variables, strict=True)), loss

    def _train(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        gradients, loss = self._gradients(x, y)
        self._optimizer.apply_gradients(gradients)
        return loss

    def _compute(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Computes gradients, and updates the dense weights locally."""
        gradients, loss = self._gradients(x, y)
        self._inner.apply_gradients([(g, v) for g, v in gradients if isinstance(g, tf.Tensor)])
        return loss

    def _hold(self, x: tf.Tensor, y: tf.Tensor) -> None:
        for gradient, variable in self._gradients(x, y)[0]:
            tensors = (gradient,) if isinstance(gradient, tf.Tensor) else (gradient.values, gradient.indices)
            self._held.append((tuple(tf.Variable(tensor, trainable=False) for tensor in tensors), variable))

    def _communicate(self, x: tf.Tensor, y: tf.Tensor) -> None:
        """Makes a synchronous step with gradients that were computed in advance. It updates tables and weights."""
        gradients = [
            (
                tensors[0].read_value()
                if len(tensors) == 1
                else tf.IndexedSlices(*(tensor.read_value() for tensor in tensors))
            )
            for tensors, _ in self._held
        ]
        self._optimizer.apply_gradients(
            [(gradient, variable) for gradient, (_, variable) in zip(gradients, self._held, strict=True)]
        )


def _make_batches(tables: bool, batch: int, rank: int) -> list[tuple[tf.Tensor, tf.Tensor]]:
    random = np.random.default_rng(rank)
    targets = [tf.constant(random.normal(size=(batch, 1)).astype(np.float32)) for _ in range(_BATCHES)]
    if tables:
        ids = zipf_ids(ROWS, batch * FIELDS, _BATCHES, seed=1 + rank)
        inputs = [tf.constant(batch_ids.reshape(batch, FIELDS)) for batch_ids in ids]
    else:
        inputs = [tf.constant(random.normal(size=(batch, FIELDS * DIM)).astype(np.float32)) for _ in range(_BATCHES)]
    return list(zip(inputs, targets, strict=True))


if __name__ == "__main__":
    main()
