"""One rank of the equality test. It writes its final values, which the test compares with the reference.

Arguments: the runs, a colon and the bytes of the exchange's window if it is to be smaller than usual; the folder for
results. The runs are names of `EVEN`, separated by commas, or "more" (both on two nodes of two ranks), "uneven" (nodes
of two ranks and of one), "single" (one node of four ranks) or "several" (several nodes of any number of ranks).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batches
import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps.collectives.local import LocalCollectives
from tf_sparse_ps.reduction import node_exchange, sparse_reducers

keras = tf.keras
OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "adagrad": keras.optimizers.Adagrad,
    "adam": keras.optimizers.Adam,
}


statistics: dict[str, float] = {}  # the statistics of all runs so far


def layers(dtype: str = "float32") -> list[Any]:
    """Returns the layers of the tables."""
    result = []
    for dim, keys, bounded in zip(batches.DIMS, batches.KEYS, batches.BOUNDED, strict=True):
        config = tsps.TableConfig("table", dim, key_limit=keys if bounded else None, dtype=dtype)
        result.append(tsps.Embedding(config.key_limit, dim, table=config))
        result[-1].build(None)
    return result


def numbers(layer: Any, keys: np.ndarray) -> np.ndarray:
    """Returns float32[n, dim]: rows as every reader sees them."""
    return np.asarray(layer(tf.constant(keys)))


def train(
    kind: str,
    reduction: str,
    steps: int,
    *,
    topology: str = "hierarchical",
    wire: str = "float32",
    dtype: str = "float32",
    clipvalue: float | None = None,
    tape: str = "plain",
    control: bool = False,
) -> dict[str, Any]:
    """Trains tables and dense weights; returns first and last values."""
    description = f"{kind} {reduction} {topology} {wire}, rows of {dtype}, {steps} steps"
    print(f"rank {this_rank.rank()}: {description}", flush=True)  # shown when the test times out
    tables = layers(dtype)
    dense = [tf.Variable(weight) for weight in batches.first_dense()]
    optimizer = tsps.DistributedOptimizer(
        OPTIMIZERS[kind](batches.RATES[kind], clipvalue=clipvalue),
        sparse_reduction=reduction,
        topology=topology,
        wire=wire,
        collectives="auto",
    )
    first = [numbers(layer, batches.all_keys(t)) for t, layer in enumerate(tables)]
    anchors = [layer.trainable_variables[0] for layer in tables]
    new_tape = tsps.DistributedGradientTape if tape == "distributed" else (lambda plain: plain)

    def step(leave_out: bool, ids: list[tf.Tensor], targets: list[tf.Tensor], dense_targets: list[tf.Tensor]) -> None:
        with new_tape(tf.GradientTape()) as recorded:
            loss = tf.add_n([0.5 * tf.reduce_sum((w - t) ** 2) for w, t in zip(dense, dense_targets, strict=True)])
            for t, layer in enumerate(tables):
                if t == 2 and leave_out:
                    continue  # this rank's graph has no lookup of the table, so its gradient is None
                # The layer is called twice: keys that repeat between the calls must count once.
                half = tf.shape(ids[t])[0] // 2
                for part in (slice(None, half), slice(half, None)):
                    loss += 0.5 * tf.reduce_sum((layer(ids[t][part]) - targets[t][part]) ** 2)
        variables = [*anchors, *dense]
        optimizer.apply_gradients(zip(recorded.gradient(loss, variables), variables, strict=True))

    signature = (
        [tf.TensorSpec([None], tf.int64) for _ in batches.DIMS],
        [tf.TensorSpec([None, dim], tf.float32) for dim in batches.DIMS],
        [tf.TensorSpec(shape, tf.float32) for shape in batches.DENSE],
    )
    # AutoGraph is off, because tracing takes most of a run.
    functions = [
        tf.function(functools.partial(step, out), input_signature=signature, autograph=False) for out in (False, True)
    ]
    reduce_over = sparse_reducers.reduce_over
    if control:
        # Nothing travels, so each leader sees only its own gradients.
        sparse_reducers.reduce_over = lambda _, *args, **options: reduce_over(LocalCollectives(), *args, **options)
    try:
        for i in range(steps):
            this_batch = batches.batch(i, this_rank.rank())
            leave_out = len(this_batch.ids[2]) == 0 and i % 3 == 0
            functions[leave_out](
                [tf.constant(ids) for ids in this_batch.ids],
                [tf.constant(targets) for targets in this_batch.targets],
                [tf.constant(targets) for targets in this_batch.dense_targets],
            )
    finally:
        sparse_reducers.reduce_over = reduce_over
    results: dict[str, Any] = {}
    for t, layer in enumerate(tables):
        results[f"first{t}"], results[f"last{t}"] = first[t], numbers(layer, batches.all_keys(t))
    for i, weight in enumerate(dense):
        results[f"dense{i}"] = weight.numpy()
    statistics.update(optimizer.statistics())
    return results


def published_example() -> np.ndarray:
    """Trains keys e f g h i on three of the ranks; returns minus the reduced gradients."""
    table = tsps.Embedding(5, 1, embeddings_initializer="zeros")
    table.build(None)
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(1.0))
    keys = [[0, 1, 4], [2, 4, 0], [3, 2, 4], []][this_rank.rank()]
    grads = tf.constant([[10.0 * this_rank.rank() + n] for n in range(len(keys))], shape=[len(keys), 1])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table(tf.constant(keys, tf.int64, [len(keys)])) * grads)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, table.trainable_variables), table.trainable_variables, strict=True)
    )
    return numbers(table, np.arange(5))


def fit_example() -> dict[str, np.ndarray]:
    """Runs `fit` with several steps per execution, other batch sizes on every rank, and evaluation on rank 0 alone."""
    keras.utils.set_random_seed(7 + this_rank.rank())  # dense weights differ until they are broadcast
    ids = keras.layers.Input((3,), dtype="int64")
    x = keras.layers.Flatten()(tsps.Embedding(None, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(x))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse", steps_per_execution=3)
    random = np.random.default_rng(this_rank.rank())
    size = 8 + 2 * this_rank.rank()
    inputs = random.integers(0, 50, (7 * size, 3))
    targets = (inputs % 7).sum(1, keepdims=True).astype("float32")
    callbacks = [tsps.callbacks.BroadcastVariables(), tsps.callbacks.MetricAverage()]
    history = model.fit(inputs, targets, batch_size=size, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    if this_rank.rank() == 0:
        model.evaluate(inputs, targets, verbose=0)
        model.predict(inputs, verbose=0)
    return {
        "losses": np.array(history.history["loss"]),
        "kernel": np.asarray(model.layers[-1].get_weights()[0]),
        "rows": np.asarray(model.layers[1](tf.range(50))),
        "step": np.array(tsps.job.current().step.numpy()),
    }


def main() -> None:
    """Makes all runs that the test looks at."""
    if this_rank.number() in (1, 2):  # one of them is a leader; an op that waits must not block their only thread
        tf.config.threading.set_inter_op_parallelism_threads(1)
    this_rank.init()
    folder = Path(sys.argv[2])
    which, _, window = sys.argv[1].partition(":")
    if window:
        node_exchange.exchange_window = lambda *_: int(window)
    groups = {"more": more, "uneven": uneven, "single": single, "several": several}
    runs = groups[which]() if which in groups else {name: EVEN[name]() for name in which.split(",")}
    for name, arrays in runs.items():
        np.savez(folder / f"{name}-{this_rank.rank()}.npz", **arrays)


# Two nodes of two ranks: each rule, reduction, topology and wire.
EVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "sgd-frequency": lambda: train("sgd", "frequency", batches.STEPS),
    "adam-frequency": lambda: train("adam", "frequency", 60),
    "adagrad-sum": lambda: train("adagrad", "sum", 30, tape="distributed"),
    "adagrad-frequency-flat": lambda: train("adagrad", "frequency", 60, topology="flat"),
    "adagrad-frequency-bfloat16": lambda: train("adagrad", "frequency", 60, wire="bfloat16"),
    "sgd-sum-flat-bfloat16": lambda: train("sgd", "sum", 30, topology="flat", wire="bfloat16"),
    "sgd-average-float16": lambda: train("sgd", "average", 30, wire="float16"),
    "adagrad-frequency-rows": lambda: train("adagrad", "frequency", 40, dtype="bfloat16"),
    "adam-average-flat-rows": lambda: train("adam", "average", 40, topology="flat", dtype="float16"),
    "control": lambda: train("sgd", "frequency", 30, topology="flat", control=True),
    "example": lambda: {"rows": published_example()},
    "fit": fit_example,
}


def more() -> dict[str, dict[str, Any]]:
    """Two nodes of two ranks: longer runs, and other combinations."""
    return {
        "adagrad-frequency": train("adagrad", "frequency", batches.STEPS),
        "adam-frequency": train("adam", "frequency", batches.STEPS),
        "sgd-average": train("sgd", "average", 30),
        "sgd-average-flat": train("sgd", "average", 30, topology="flat"),
        "adagrad-sum-flat": train("adagrad", "sum", 30, topology="flat"),
        "sgd-average-bfloat16": train("sgd", "average", 20, wire="bfloat16"),
        "adagrad-sum-bfloat16": train("adagrad", "sum", 20, wire="bfloat16"),
        "adagrad-frequency-flat-bfloat16": train("adagrad", "frequency", 20, topology="flat", wire="bfloat16"),
        "sgd-average-flat-bfloat16": train("sgd", "average", 20, topology="flat", wire="bfloat16"),
    }


def single() -> dict[str, dict[str, Any]]:
    """A node of four ranks. The leader applies merged gradients in place, unless they are clipped."""
    return {
        "adagrad-frequency": train("adagrad", "frequency", 40),
        "adam-average": train("adam", "average", 20),
        "sgd-sum": train("sgd", "sum", 20),
        "sgd-frequency-clipped": train("sgd", "frequency", 20, clipvalue=1e9),
        "statistics": {name: np.array(value) for name, value in statistics.items()},
    }


def several() -> dict[str, dict[str, Any]]:
    """Several nodes, in many rounds per step."""
    return {
        "adagrad-frequency": train("adagrad", "frequency", 20),
        "sgd-sum-clipped": train("sgd", "sum", 20, clipvalue=1e9),
        "sgd-average-bfloat16": train("sgd", "average", 20, wire="bfloat16"),
        "statistics": {name: np.array(value) for name, value in statistics.items()},
    }


def uneven() -> dict[str, dict[str, Any]]:
    """A node of two ranks and a node of one."""
    return {
        "adagrad-frequency": train("adagrad", "frequency", 40),
        "sgd-average-bfloat16": train("sgd", "average", 20, wire="bfloat16"),
    }


if __name__ == "__main__":
    main()
