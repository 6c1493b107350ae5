"""One rank of the delayed schedule's equality test. It writes weights after every step, to compare with the reference.

Arguments: the names of the cases, separated by commas; the folder for results.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import delayed_cases as cases
import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras

keras = tf.keras
_STEPS_PER_CALL = 3
_SLOW = (1,)  # this rank is not a leader, so another rank changes its node's tables


def make_optimizer(case: cases.Case) -> Any:
    """Returns the Keras optimizer of a case."""
    rate = keras.optimizers.schedules.InverseTimeDecay(cases.RATES[case.kind], 1, cases.DECAY)
    momentum = {"momentum": 0.9, "nesterov": 0.9}.get(case.kind, 0.0)
    return {
        "adagrad": lambda: keras.optimizers.Adagrad(rate),
        "adam": lambda: keras.optimizers.Adam(rate),
    }.get(case.kind, lambda: keras.optimizers.SGD(rate, momentum=momentum, nesterov=case.kind == "nesterov"))()


def train(case: cases.Case) -> dict[str, Any]:
    """Runs a case; returns its results."""
    print(f"rank {this_rank.rank()}: {case}", flush=True)  # shown when the test times out
    dense = [tf.Variable(weight) for weight in cases.first_weights()]
    inner = make_optimizer(case)
    optimizer = tsps.DistributedOptimizer(
        inner,
        sparse_optimizer="sgd",
        schedule=tsps.schedules.DelayedGlobal(
            staleness=case.staleness, cycle=case.cycle, apply=case.apply, reproducible=True
        ),
    )
    statistic = tf.Variable(0.0, trainable=False)  # like the statistics of batch normalisation
    optimizer.also_average(lambda: [statistic])
    layer, anchors, first = None, [], np.zeros([cases.KEYS, cases.DIM], np.float32)
    if case.tables:
        layer = tsps.Embedding(None, cases.DIM, embeddings_initializer="uniform")
        layer.build(None)
        anchors, first = layer.trainable_variables, np.asarray(layer(tf.range(cases.KEYS)))
    after = [tf.Variable(weight, shape=tf.TensorShape(None)) for weight in (tf.zeros([0, 11]),)]

    def step(targets: list[tf.Tensor], ids: tf.Tensor, rows: tf.Tensor, weight: tf.Tensor) -> None:
        optimizer.rank_weight.assign(weight)
        with tf.GradientTape() as tape:
            loss = tf.add_n([0.5 * tf.reduce_sum((w - t) ** 2) for w, t in zip(dense, targets, strict=True)])
            if layer is not None:
                loss += 0.5 * tf.reduce_sum((layer(ids) - rows) ** 2)
        variables = [*anchors, *dense]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        now = tf.concat([tf.reshape(variable, [1, -1]) for variable in dense], axis=1)
        after[0].assign(tf.concat([after[0], now], axis=0))

    signature = [tf.TensorSpec(shape, tf.float32) for shape in cases.SHAPES]
    signature += [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, cases.DIM], tf.float32)]
    signature += [tf.TensorSpec([], tf.float32)]
    batches = [cases.batch(case, i, this_rank.rank()) for i in range(cases.STEPS)]

    def data() -> Any:
        for batch in batches:
            if case.tables and this_rank.rank() in _SLOW:
                time.sleep(0.02)  # the rank lags by as much as the bound allows
            yield *batch.targets, batch.ids, batch.rows, np.float32(batch.weight)

    dataset = tf.data.Dataset.from_generator(data, output_signature=tuple(signature))
    single = lambda first, second, *rest: step([first, second], *rest)  # noqa: E731
    if case.mode == "loop":

        @tf.function(reduce_retracing=True)
        def several(iterator: Any, n: tf.Tensor) -> None:
            for _ in tf.range(n):
                single(*next(iterator))

        iterator = iter(dataset)
        for start in range(0, cases.STEPS, _STEPS_PER_CALL):
            several(iterator, tf.constant(min(_STEPS_PER_CALL, cases.STEPS - start)))
    else:
        function = single if case.mode == "eager" else tf.function(single, input_signature=signature, autograph=False)
        for elements in dataset:
            function(*elements)
    statistic.assign(float(this_rank.rank() + 1))
    optimizer.drain()
    slots = [
        np.concatenate([np.ravel(slot) for slot in group])
        for group in zip(*(_keras.slots_of(inner, variable) for variable in dense), strict=True)
    ]
    return {
        "after": after[0].numpy(),
        "last": np.concatenate([np.ravel(weight.numpy()) for weight in dense]),
        "slots": np.stack(slots) if slots else np.zeros([0, 11], np.float32),
        "first_rows": first,
        "rows": first if layer is None else np.asarray(layer(tf.range(cases.KEYS))),
        "statistic": statistic.numpy(),
        "iterations": int(optimizer.iterations),
        **{f"report_{name}": value for name, value in optimizer.schedule_report().items()},
    }


def main() -> None:
    """Runs all cases."""
    if this_rank.number() in (1, 2):  # one of them is a leader; an op that waits must not block their only thread
        tf.config.threading.set_inter_op_parallelism_threads(1)
    this_rank.init()
    names, folder = sys.argv[1].split(","), Path(sys.argv[2])
    for case in [case for case in cases.CASES if case.name in names]:
        np.savez(folder / f"{case.name}-{this_rank.rank()}.npz", **train(case))


if __name__ == "__main__":
    main()
