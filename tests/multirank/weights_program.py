"""One rank of the tests of weights: empty batches, batches of other sizes, fewer batches, an untouched table.

Arguments: the runs ("two-nodes", "one-node", "pair": two ranks), the folder for results. weighted_batches.py has the
batches of every rank at every step.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import batches
import numpy as np
import tensorflow as tf
import this_rank
import weighted_batches as weighted
from equality_program import OPTIMIZERS, layers, numbers

import tf_sparse_ps as tsps
from tf_sparse_ps.reduction import dense_mean, gradients, rank_weight, sparse_gradient, sparse_reducer

keras = tf.keras


def train(kind: str, reduction: str, *, topology: str = "hierarchical", tape: bool = False) -> dict[str, Any]:
    """Trains with the batches of `weighted_batches`; returns first and last values."""
    print(f"rank {this_rank.rank()}: {kind} {reduction} {topology} {tape}", flush=True)
    tables = layers()
    first = [numbers(layer, batches.all_keys(t)) for t, layer in enumerate(tables)]
    dense = [tf.Variable(weight) for weight in batches.first_dense()]
    big = tf.Variable(weighted.first_big())
    optimizer = tsps.DistributedOptimizer(
        OPTIMIZERS[kind](batches.RATES[kind]), sparse_reduction=reduction, topology=topology
    )
    variables = [*(layer.trainable_variables[0] for layer in tables), *dense, big]

    def step(touched: bool, samples: tf.Tensor, ids: list[tf.Tensor], targets: Any, dense_targets: Any) -> None:
        recorded: Any = tf.GradientTape()
        if tape:
            recorded = tsps.DistributedGradientTape(recorded, weight=optimizer.rank_weight)
        with recorded:
            loss = tf.add_n([0.5 * tf.reduce_sum((w - t) ** 2) for w, t in zip(dense, dense_targets, strict=True)])
            loss += 0.5 * tf.reduce_sum((tf.gather(big, weighted.big_ids(ids[1])) - 1.0) ** 2)
            for t, layer in enumerate(tables):
                if t != weighted.TABLE_ONE_RANK_LACKS or touched:
                    loss += 0.5 * tf.reduce_sum((layer(ids[t]) - targets[t]) ** 2)
            loss *= samples / samples  # the mean of an empty batch is NaN, and so are all its gradients
        optimizer.apply_gradients(zip(recorded.gradient(loss, variables), variables, strict=True))

    signature = (
        tf.TensorSpec([], tf.float32),
        [tf.TensorSpec([None], tf.int64) for _ in batches.DIMS],
        [tf.TensorSpec([None, dim], tf.float32) for dim in batches.DIMS],
        [tf.TensorSpec(shape, tf.float32) for shape in batches.DENSE],
    )
    touched = this_rank.rank() != weighted.RANK_WITHOUT_IT
    run = tf.function(functools.partial(step, touched), input_signature=signature)
    for number in range(weighted.STEPS):
        rank_batch, samples = batches.batch(number, this_rank.rank()), float(weighted.samples(number, this_rank.rank()))
        optimizer.rank_weight.assign(samples)
        run(
            tf.constant(samples),
            *(
                [tf.constant(a) for a in part]
                for part in (rank_batch.ids, rank_batch.targets, rank_batch.dense_targets)
            ),
        )
    results: dict[str, Any] = {"big": big.numpy()}
    for t, layer in enumerate(tables):
        results[f"first{t}"], results[f"last{t}"] = first[t], numbers(layer, batches.all_keys(t))
    for i, weight in enumerate(dense):
        results[f"dense{i}"] = weight.numpy()
    return results


def fit(steps_per_execution: int) -> dict[str, Any]:
    """Runs `fit` on ranks with 5, 2, 3 and 1 batches of different sizes."""
    ids = keras.layers.Input((weighted.FIELDS,), dtype="int64")
    table = tsps.Embedding(None, weighted.DIM)
    head = keras.layers.Dense(1)
    model = keras.Model(ids, head(keras.layers.Flatten()(table(ids))))
    head.set_weights([weighted.first_kernel(), np.zeros(1)])
    first = numbers(table, np.arange(weighted.KEYS))
    optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(weighted.RATE))
    optimizer.rank_weight.assign(float(weighted.BATCH_SIZES[this_rank.rank()]))
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    inputs, targets = weighted.fit_data(this_rank.rank())
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(weighted.BATCH_SIZES[this_rank.rank()])
    equal = tsps.callbacks.EqualSteps(data)
    history = model.fit(equal.dataset, epochs=weighted.EPOCHS, verbose=0, callbacks=[equal]).history
    return {
        "first": first,
        "last": numbers(table, np.arange(weighted.KEYS)),
        "kernel": head.get_weights()[0],
        "bias": head.get_weights()[1],
        "metrics": np.array([history["loss"], history["mae"]]),
        "iterations": np.array(int(optimizer.iterations)),
    }


def plain_means() -> dict[str, Any]:
    """Returns means with all weights 1, and the plain means of the collectives and of the sparse ring."""
    world, random = tsps.collectives.current(), np.random.default_rng(this_rank.rank())
    dense = [tf.constant(random.normal(size=shape), tf.float32) for shape in ((3, 5), (1,), (200, 100), (7,))]
    dense += [tf.constant(random.normal(size=9), dtype) for dtype in (tf.float64, tf.float16)]
    keys = tf.constant(random.permutation(20)[:12])
    sparse = sparse_gradient.SparseGradient(keys, tf.constant(random.normal(size=(12, 4)), tf.float32))
    weight = rank_weight.allowed(1.0)
    ours, _ = dense_mean.average(dense, world, "t.ours", weight)
    plain = world.allreduce(dense, "t.plain")
    (rows,), _ = rank_weight.average_sparse([sparse], world, "t.ours.sparse", weight)
    (mean,) = sparse_reducer.reduce_over(
        world, [sparse], "t.plain.sparse", reduction="average", wire="float32", world_size=world.size
    )
    pairs = [*zip(ours, plain, strict=True), (rows.keys, mean.keys), (rows.rows, mean.rows)]
    return {f"{side}{i}": pair[k].numpy() for i, pair in enumerate(pairs) for k, side in enumerate(("ours", "plain"))}


def errors() -> dict[str, str]:
    """Returns the errors of every rank when one rank does something that cannot work."""
    messages: dict[str, str] = {}

    def attempt(name: str, action: Any) -> None:
        try:
            action()
            messages[name] = "no error"
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"

    def per_rank(usual: Any, on_rank_1: Any) -> Any:
        return on_rank_1 if this_rank.rank() == 1 else usual

    def wrong_weight(weight: float, graph: bool, big: bool) -> None:
        variable = tf.Variable(tf.ones([4, 2]))
        optimizer = tsps.DistributedOptimizer("sgd")
        optimizer.rank_weight.assign(per_rank(1.0, weight))

        def step() -> None:
            gradient: Any = tf.ones([4, 2])
            if big:
                gradient = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
            optimizer.apply_gradients([(gradient, variable)])

        limit, gradients._DENSIFY_UP_TO = gradients._DENSIFY_UP_TO, 0 if big else 1 << 20
        try:
            (tf.function(step) if graph else step)()
        finally:
            gradients._DENSIFY_UP_TO = limit
            messages[f"weights after {weight}"] = str(variable.numpy().tolist())

    for weight in (-1.0, float("nan"), float("inf")):
        for graph in (True, False):
            attempt(f"{weight} {graph}", functools.partial(wrong_weight, weight, graph, False))
    attempt("big", functools.partial(wrong_weight, -2.0, True, True))

    data = tf.data.Dataset.from_tensor_slices((tf.zeros([6, 3]), tf.zeros([6, 1]))).batch(2)
    equal = tsps.callbacks.EqualSteps
    attempt("unknown", lambda: equal(per_rank(data, data.filter(lambda *_: True))))
    attempt("infinite", lambda: equal(per_rank(data, data.repeat())))
    attempt("none", lambda: equal(per_rank(data, data.take(0))))
    attempt("array", lambda: equal(per_rank(data, np.zeros(3))))

    def fitted(optimizer: Any, dataset: Any, **options: Any) -> None:
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        callback = equal(per_rank(data, data.take(1)))
        model.fit(callback.dataset if dataset is None else dataset, verbose=0, callbacks=[callback], **options)

    attempt("not its dataset", lambda: fitted(tsps.DistributedOptimizer("sgd"), per_rank(None, data.take(1))))
    attempt("steps_per_epoch", lambda: fitted(tsps.DistributedOptimizer("sgd"), None, steps_per_epoch=2))
    attempt("not our optimizer", lambda: fitted("sgd", None))
    return messages


def main() -> None:
    """Makes all runs that the tests look at."""
    this_rank.init()
    gradients._DENSIFY_UP_TO = 1 << 20
    which, folder = sys.argv[1], Path(sys.argv[2])
    results: dict[str, dict[str, Any]]
    if which == "pair":
        results = {"means": plain_means()}
    else:
        gradients._DENSIFY_UP_TO = 100  # now `big` alone of the dense weights has a sparse gradient
        results = {
            "sgd-frequency": train("sgd", "frequency"),
            "adagrad-average": train("adagrad", "average"),
            "sgd-sum-tape": train("sgd", "sum", tape=True),
            "fit-1": fit(1),
            "fit-3": fit(3),
        }
        if which == "two-nodes":
            results["adagrad-frequency-flat"] = train("adagrad", "frequency", topology="flat")
            results["adam-frequency"] = train("adam", "frequency")
            gradients._DENSIFY_UP_TO = 1 << 20
            (folder / f"errors-{this_rank.rank()}.json").write_text(json.dumps(errors()))
    for name, arrays in results.items():
        np.savez(folder / f"{name}-{this_rank.rank()}.npz", **arrays)


if __name__ == "__main__":
    main()
