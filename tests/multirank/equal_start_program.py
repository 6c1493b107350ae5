"""One rank of a job whose ranks begin with different weights, in several ways one after another.

Every rank records the outcome of each way. Argument: the folder for results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.job.table_seeds import TableSeeds

keras = tf.keras
ROWS, DIM, BATCH, STEPS = 12, 4, 5, 6
FOLDER = Path(sys.argv[1])
Buckets, Delayed = tsps.schedules.TimedBuckets, tsps.schedules.DelayedGlobal


def make_model(seed: int, **options: Any) -> Any:
    """Returns a compiled model of ids[batch, 3] and one output. Its weights are trainable, frozen, or counters."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((3,), dtype="int64")
    rows = keras.layers.Flatten()(tsps.Embedding(ROWS, DIM, "ones")(ids))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(5, trainable=False)(rows))
    if _keras.IS_KERAS_3:  # its seeds are variables, which each rank keeps
        hidden = keras.layers.Dropout(0.1, seed=tsps.collectives.current().rank)(hidden)
    model = keras.Model(ids, keras.layers.Dense(1)(hidden))
    eagerly = options.pop("run_eagerly", False)
    optimizer = options.pop("optimizer", "Adagrad")
    inner = getattr(keras.optimizers, optimizer)(0.1)
    model.compile(tsps.DistributedOptimizer(inner, **options), "mse", run_eagerly=eagerly)
    return model


def fit(model: Any, **options: Any) -> None:
    """Trains one epoch on this rank's data."""
    random = np.random.default_rng(tsps.collectives.current().rank)
    ids, labels = random.integers(0, ROWS, (BATCH * STEPS, 3)), random.normal(size=(BATCH * STEPS, 1))
    model.fit(ids, labels.astype(np.float32), BATCH, shuffle=False, verbose=0, **options)


def state(model: Any) -> dict[str, Any]:
    """Returns the values that ranks must share, and the statistics, which each rank has for itself."""
    numbers = {"table": model.layers[1].get_weights(), "trained": model.layers[-1].get_weights()}
    numbers["frozen"] = model.layers[3].get_weights()
    numbers["normalisation"] = [weight.numpy() for weight in model.layers[4].trainable_weights]
    optimizer = model.optimizer.variables
    numbers["optimizer"] = [np.asarray(value) for value in (optimizer() if callable(optimizer) else optimizer)]
    numbers["statistics"] = [weight.numpy() for weight in model.layers[4].non_trainable_weights]
    return {name: [np.asarray(value).tolist() for value in values] for name, values in numbers.items()}


def fitted(seed: int, **options: Any) -> dict[str, Any]:
    """Returns the state of a model that was trained."""
    model = make_model(seed, **options)
    fit(model)
    return state(model)


def fits(rank: int) -> dict[str, Any]:
    """Trains models with different seeds, and with rank 0's seed on all ranks."""
    ways: dict[str, dict[str, Any]] = {
        "synchronous": {},
        "flat": {"topology": "flat"},
        "server": {"schedule": Buckets(profile_steps=2, max_profiles=1, server=True)},
        "delayed": {"schedule": Delayed(reproducible=True)},
    }
    states = {name: fitted(10 + rank, **options) for name, options in ways.items()}
    return {
        **states,
        "run_eagerly": fitted(10 + rank, run_eagerly=True),
        "alike": fitted(10),
        "alike, delayed": fitted(10, **ways["delayed"]),
    }


def loops(rank: int) -> dict[str, Any]:
    """Returns values of a weight and of two rows after each step of custom training loops, eager and in a graph."""

    def values(graph: bool, taped: bool) -> list[Any]:
        table, weight = tsps.Embedding(2, 1, "zeros"), tf.Variable(1.0 + rank)
        table.build(None)
        optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1))
        frozen, count = (tf.Variable(rank, trainable=False, dtype=dtype) for dtype in (tf.float32, tf.int64))
        optimizer.also_average(lambda: [frozen, count])

        def step() -> None:
            tape = tf.GradientTape()
            with tsps.DistributedGradientTape(tape) if taped else tape as tape:
                loss = weight * (1.0 + 2.0 * rank) + tf.reduce_sum(table(tf.constant([rank], tf.int64)))
            variables = [weight, *table.trainable_variables]
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        traced_step = tf.function(step) if graph else step
        values_after_steps = []
        for _ in range(2):
            traced_step()
            values_after_steps.append([float(weight), *np.asarray(table(tf.range(2))).ravel().tolist()])
        return [*values_after_steps, [float(frozen), int(count)]]

    return {"graph": values(True, False), "eager": values(False, False), "eager, taped": values(False, True)}


def loaded_on_rank_0(rank: int) -> dict[str, Any]:
    """Rank 0 alone loads a model in the middle of its training."""
    model = make_model(20, optimizer="Adam")
    fit(model)
    path = str(FOLDER.parent / f"{FOLDER.name}.weights.h5")
    world = tsps.collectives.current()
    if rank == 0:
        model.save_weights(path)
    before = state(model)
    world.barrier("test.saved")
    again = make_model(30 + rank, optimizer="Adam")
    again.optimizer.build(again.trainable_variables)
    if rank == 0:
        again.load_weights(path)
        # The content of the optimizer's file depends on the version of Keras.
        for variable, value in zip(again.optimizer.inner_optimizer.variables, before["optimizer"], strict=True):
            variable.assign(value)
    equal = tsps.callbacks.EqualSteps(
        tf.data.Dataset.from_tensor_slices((np.ones((4, 2, 3), np.int64), np.ones((4, 2))))
    )
    again.fit(equal.dataset, callbacks=[equal], verbose=0)
    return {"before": before, "after": state(again), "weight": float(again.optimizer.rank_weight)}


def refused(rank: int) -> dict[str, Any]:
    """`broadcast=False`, with different weights and with equal ones."""
    model = make_model(40 + rank, broadcast=False)
    before = state(model)
    try:
        fit(model)
        message = "no error"
    except ValueError as error:
        message = str(error)
    moved = [name for name, values in state(model).items() if values != before[name] and name != "optimizer"]
    return {"said": message, "moved": moved, "alike": fitted(50, broadcast=False)}


def launchers(rank: int) -> dict[str, str]:
    """Connected ranks under a launcher that started as many processes, and under one that started more."""
    kept = {name: os.environ.pop(name) for name in ("HOROVOD_SIZE", "HOROVOD_RANK")}
    outcomes = {}
    for size in ("2", "3"):
        os.environ["OMPI_COMM_WORLD_SIZE"] = size
        try:
            outcomes[size] = f"{tsps.collectives.current().size} ranks"
        except RuntimeError as error:
            outcomes[size] = str(error)
    del os.environ["OMPI_COMM_WORLD_SIZE"]
    os.environ.update(kept)
    return outcomes


def seeds(rank: int) -> dict[str, Any]:
    """Seeds of the job's tables. Each rank has set another."""
    return {"job": tsps.job.current().tables.seeds.seed, "of rank 0": TableSeeds("", "10", follow=False).seed}


WAYS: list[Callable[[int], dict[str, Any]]] = [fits, loops, loaded_on_rank_0, refused, launchers, seeds]


def main() -> None:
    """Tries every way."""
    rank = this_rank.init().rank
    outcomes = {way.__name__: way(rank) for way in WAYS}
    (FOLDER / f"outcomes-{rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
