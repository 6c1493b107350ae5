"""One rank of a job whose model has 26 ids per sample from one table of 1M x 64, their mean, and a small MLP.

The suites `ranks` and `cluster` start it. On an emulated host, which has its own network interface, it also counts the
bytes that pass the interface, once while it is idle and once while it trains.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.harness import Cycle, zipf_ids
from benchmarks.job_sizes import BATCH, DIM, EXPONENT, FIELDS, HIDDEN, QUICK_BATCH, QUICK_ROWS, ROWS

RATE = 0.01
_BATCHES = 8  # different batches, which take turns
_WARMUP = 5


@dataclasses.dataclass(frozen=True)
class _Work:
    """The work that is timed.

    Attributes:
        step: Trains on ids, int64[batch, FIELDS], and labels, float32[batch, 1].
        gather: Returns every rank's numbers, in rank order. It is a barrier, too.
        table_rows: Returns the number of the table's rows on this rank's host; None: the job has no table of ours.
        model: The model of a job that is ours, else None.
    """

    rank: int
    local_rank: int
    size: int
    step: Callable[..., Any]
    gather: Callable[[list[int]], list[list[int]]]
    table_rows: Callable[[], int] | None = None
    model: Any = None


def main() -> None:
    """Trains some steps. Rank 0 writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("shared", "replicated"), required=True)
    parser.add_argument("--dense-only", action="store_true", help="use rows that cost nothing instead of the table")
    parser.add_argument("--sharded", metavar="WIRE", help="spread the rows over the hosts; rows travel in this dtype")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="a wait in each step, between lookup and update")
    parser.add_argument("--ahead", action="store_true", help="use tsps.lookahead")
    parser.add_argument("--optimizer", type=json.loads, default={}, help="options of DistributedOptimizer, as JSON")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--count-bytes", metavar="INTERFACE", help="an interface that only this rank's host uses")
    parser.add_argument("--record", type=int, metavar="STEPS", default=0, help="further steps, whose spans are written")
    parser.add_argument("--began", type=float, help="the time at which the job was started, by the machine's clock")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    rows, batch, count, idle_s = (
        (QUICK_ROWS, QUICK_BATCH, 5, 1.0) if options.quick else (ROWS, BATCH, options.steps, 3.0)
    )

    shared, with_table = options.kind == "shared", not options.dense_only
    work = (
        _ours(with_table, options.sharded, options.wait_ms * 1e-3, options.optimizer)
        if shared
        else _replicated(rows, with_table)
    )
    labels = np.random.default_rng(work.rank).integers(0, 2, (batch, 1)).astype(np.float32)
    next_batch = Cycle(
        [
            (tf.constant(ids.reshape(batch, FIELDS)), tf.constant(labels))
            for ids in zipf_ids(rows, batch * FIELDS, batches=_BATCHES, exponent=EXPONENT, seed=1 + work.rank)
        ]
    )
    work.step(*next_batch())
    if options.ahead:
        next_batch = _ahead(next_batch, work)
    first_step_s = time.time() - options.began if options.began else 0.0
    if shared and with_table:  # our table inserts rows when they are first trained; the peer has them from the start
        for part in _fill(rows, batch * FIELDS, work):
            work.step(tf.constant(part.reshape(batch, FIELDS)), tf.constant(labels))
    for _ in range(_WARMUP):
        work.step(*next_batch())
    idle = _passed(options.count_bytes, work, lambda: time.sleep(idle_s)) if options.count_bytes else None
    times: list[float] = []

    def train() -> None:
        for _ in range(count):
            began = time.perf_counter()
            work.step(*next_batch())
            times.append(time.perf_counter() - began)

    if options.count_bytes:
        busy = _passed(options.count_bytes, work, train)
    else:
        train()
    spans = _spans(options.record, lambda: work.step(*next_batch())) if options.record else None
    total_pss = sum(total_pss for (total_pss,) in work.gather([_pss()]))
    host_rows = work.gather([work.local_rank, work.table_rows()]) if work.table_rows else []
    if work.rank == 0:
        median = statistics.median(times)
        figures: dict[str, Any] = {
            "step_ms": median * 1e3,
            "samples_per_second": work.size * batch / median,
            "pss_mib": total_pss / 2**20,
            "first_step_s": first_step_s,
        }
        if host_rows:
            figures["rows"] = [rows for local_rank, rows in host_rows if local_rank == 0]
        if spans is not None:
            figures["spans"] = spans
        if idle is not None:
            figures |= {"steps": count, "idle": idle, "busy": busy}
        options.out.write_text(json.dumps(figures))


def _fill(rows: int, ids: int, work: _Work) -> Iterator[np.ndarray]:
    """Yields batches of ids that insert this rank's share of all rows.

    Each batch has fewer distinct ids than a timed batch, because buffers and logs keep the size of the largest step.
    """
    steps = -(-rows // (work.size * (ids // 4)))
    for part in np.array_split(np.arange(work.rank, rows, work.size), steps):
        yield np.resize(part, ids)


def _spans(steps: int, step: Callable[[], Any]) -> list[list[tuple[str, int, int]]]:
    """Returns what every rank did in some steps: name, beginning and end, in nanoseconds of the machine's clock."""
    import tf_sparse_ps as tsps
    from benchmarks import spans

    ranks = tsps.collectives.current()
    ranks.barrier("bench.timeline")
    spans.start()
    for _ in range(steps):
        step()
    return ranks.allgather_object(spans.stop(), "bench.spans")


def _passed(interface: str, work: _Work, action: Callable[[], Any]) -> dict[str, Any]:
    """Runs an action on all ranks at the same time, and counts the bytes that pass the hosts' interfaces.

    Returns:
        "seconds", and the "sent" and "received" bytes of each host.
    """
    work.gather([0])
    began, before = time.perf_counter(), interface_counters(interface)
    action()
    work.gather([0])  # another rank may still be sending
    passed = [now - then for now, then in zip(interface_counters(interface), before, strict=True)]
    seconds = time.perf_counter() - began
    everywhere = [numbers[1:] for numbers in work.gather([work.local_rank, *passed]) if numbers[0] == 0]
    return {"seconds": seconds, "sent": [sent for sent, _ in everywhere], "received": [got for _, got in everywhere]}


def interface_counters(interface: str) -> tuple[int, int]:
    """Returns the bytes that the interface has sent and received."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            fields = numbers.split()
            return int(fields[8]), int(fields[0])
    raise ValueError(f"this host has no network interface {interface!r}")


def _ahead(next_batch: Callable[[], Any], work: _Work) -> Callable[[], Any]:
    """Returns the same batches in the same order, announced by lookahead before they are trained."""
    import tf_sparse_ps as tsps

    ids, labels = next_batch()

    def elements() -> Iterator[Any]:
        while True:
            yield next_batch()

    dataset = tf.data.Dataset.from_generator(
        elements, output_signature=(tf.TensorSpec(ids.shape, ids.dtype), tf.TensorSpec(labels.shape, labels.dtype))
    )
    batches = iter(tsps.lookahead(dataset, work.model, batches=2))
    return lambda: next(batches)


def _waits(seconds: float) -> keras.layers.Layer:
    """Returns a layer that waits. It stands for a device that computes, while nothing uses a processor."""

    def sleep(row: Any) -> Any:
        time.sleep(seconds)
        return row

    def wait(rows: tf.Tensor) -> tf.Tensor:
        # The op is not stateful, so that ops with a state, such as an exchange, do not wait for it.
        done = tf.numpy_function(sleep, [rows[0, 0]], tf.float32, stateful=False)
        with tf.control_dependencies([done]):
            return tf.identity(rows)

    return keras.layers.Lambda(wait)


def _model(embedding: Any, wait_s: float = 0.0) -> keras.Model:
    model = keras.Sequential(
        [
            embedding,
            *([_waits(wait_s)] if wait_s else []),
            keras.layers.Lambda(lambda rows: tf.reduce_mean(rows, axis=1)),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model(tf.zeros([1, FIELDS], tf.int64))
    return model


class _NoTable(keras.layers.Layer):  # type: ignore[misc]
    """Rows that cost next to nothing to make. The model computes their gradient, which is not used."""

    def build(self, _: Any) -> None:
        self.one = self.add_weight(shape=(DIM,), name="one")

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def rows(_: tf.Tensor) -> Any:
            return tf.one_hot(tf.cast(ids, tf.int64) % DIM, DIM), lambda gradient: gradient[0, 0]

        return rows(tf.convert_to_tensor(self.one))


def _loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def _ours(with_table: bool, sharded: str | None, wait_s: float, options: dict[str, Any]) -> _Work:
    import tf_sparse_ps as tsps
    from tf_sparse_ps.config.placement import Sharded

    ranks = tsps.init()
    placement: Any = Sharded(wire=sharded) if sharded else "replicated"
    layer = tsps.Embedding(None, DIM, placement=placement) if with_table else _NoTable()
    model = _model(layer, wait_s)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(RATE), **options)

    @tf.function(reduce_retracing=True)
    def step(ids: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = _loss(labels, model(ids, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    return _Work(
        ranks.rank,
        ranks.local_rank,
        ranks.size,
        step,
        lambda numbers: ranks.allgather_object(numbers, "bench.numbers"),
        (lambda: len(layer.bindings[0].reader())) if with_table else None,
        model,
    )


def _replicated(rows: int, with_table: bool) -> _Work:
    import horovod.tensorflow as hvd

    hvd.init()
    model = _model(keras.layers.Embedding(rows, DIM) if with_table else _NoTable())
    optimizer = keras.optimizers.Adagrad(RATE)

    @tf.function(reduce_retracing=True)
    def step(ids: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = _loss(labels, model(ids, training=True))
        variables = model.trainable_variables
        gradients = [
            # Horovod's own wrapper reduces nothing with Keras 3, so this job calls the collectives.
            hvd.allreduce(gradient, op=hvd.Average, name=f"gradient_{number}")
            for number, gradient in enumerate(tape.gradient(loss, variables))
        ]
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    def gather(numbers: list[int]) -> list[list[int]]:
        return hvd.allgather(tf.constant([numbers], tf.int64)).numpy().tolist()

    return _Work(hvd.rank(), hvd.local_rank(), hvd.size(), step, gather)


def _pss() -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
