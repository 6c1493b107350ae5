"""One rank of a job whose ranks begin with different weights, in several ways one after another.

Every rank writes down what each way ended in. Argument: the folder for results.
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
    """ids[batch, 3] to one output, with weights that are trained, frozen and counted; compiled."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((3,), dtype="int64")
    rows = keras.layers.Flatten()(tsps.Embedding(ROWS, DIM, "ones")(ids))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(5, trainable=False)(rows))
    if _keras.IS_KERAS_3:  # whose seeds are variables: they stay each rank's own business
        hidden = keras.layers.Dropout(0.1, seed=tsps.collectives.current().rank)(hidden)
    model = keras.Model(ids, keras.layers.Dense(1)(hidden))
    eagerly = options.pop("run_eagerly", False)
    optimizer = options.pop("optimizer", "Adagrad")
    inner = getattr(keras.optimizers, optimizer)(0.1)
    model.compile(tsps.DistributedOptimizer(inner, **options), "mse", run_eagerly=eagerly)
    return model


def fit(model: Any, **options: Any) -> None:
    """One epoch on this rank's data."""
    random = np.random.default_rng(tsps.collectives.current().rank)
    ids, labels = random.integers(0, ROWS, (BATCH * STEPS, 3)), random.normal(size=(BATCH * STEPS, 1))
    model.fit(ids, labels.astype(np.float32), BATCH, shuffle=False, verbose=0, **options)


def state(model: Any) -> dict[str, Any]:
    """What ranks must share, and the statistics, which each has for itself."""
    numbers = {"table": model.layers[1].get_weights(), "trained": model.layers[-1].get_weights()}
    numbers["frozen"] = model.layers[3].get_weights()
    numbers["normalisation"] = [one.numpy() for one in model.layers[4].trainable_weights]
    optimizer = model.optimizer.variables
    numbers["optimizer"] = [np.asarray(one) for one in (optimizer() if callable(optimizer) else optimizer)]
    numbers["statistics"] = [one.numpy() for one in model.layers[4].non_trainable_weights]
    return {name: [np.asarray(one).tolist() for one in values] for name, values in numbers.items()}


def fitted(seed: int, **options: Any) -> dict[str, Any]:
    """State of a model that was trained."""
    model = make_model(seed, **options)
    fit(model)
    return state(model)


def fits(rank: int) -> dict[str, Any]:
    """Models of different seeds, and of rank 0's on all ranks."""
    ways: dict[str, dict[str, Any]] = {
        "synchronous": {},
        "flat": {"topology": "flat"},
        "server": {"schedule": Buckets(profile_steps=2, max_profiles=1, server=True)},
        "delayed": {"schedule": Delayed(reproducible=True)},
    }
    found = {name: fitted(10 + rank, **options) for name, options in ways.items()}
    return {
        **found,
        "run_eagerly": fitted(10 + rank, run_eagerly=True),
        "alike": fitted(10),
        "alike, delayed": fitted(10, **ways["delayed"]),
    }


def loops(rank: int) -> dict[str, Any]:
    """Values of a weight and of two rows after each step of custom training loops, eager and in a graph."""

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

        one = tf.function(step) if graph else step
        found = []
        for _ in range(2):
            one()
            found.append([float(weight), *np.asarray(table(tf.range(2))).ravel().tolist()])
        return [*found, [float(frozen), int(count)]]

    return {"graph": values(True, False), "eager": values(False, False), "eager, taped": values(False, True)}


def loaded_on_rank_0(rank: int) -> dict[str, Any]:
    """A model that rank 0 alone has loaded, in the middle of its training."""
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
        # What Keras has put in the file of the optimizer depends on its version.
        for one, value in zip(again.optimizer.inner_optimizer.variables, before["optimizer"], strict=True):
            one.assign(value)
    equal = tsps.callbacks.EqualSteps(
        tf.data.Dataset.from_tensor_slices((np.ones((4, 2, 3), np.int64), np.ones((4, 2))))
    )
    again.fit(equal.dataset, callbacks=[equal], verbose=0)
    return {"before": before, "after": state(again), "weight": float(again.optimizer.rank_weight)}


def refused(rank: int) -> dict[str, Any]:
    """`broadcast=False`, of different weights and of equal ones."""
    model = make_model(40 + rank, broadcast=False)
    before = state(model)
    try:
        fit(model)
        said = "no error"
    except ValueError as error:
        said = str(error)
    moved = [name for name, values in state(model).items() if values != before[name] and name != "optimizer"]
    return {"said": said, "moved": moved, "alike": fitted(50, broadcast=False)}


def launchers(rank: int) -> dict[str, str]:
    """Ranks that have met, of a launcher that has started as many processes, and of one that has started more."""
    kept = {name: os.environ.pop(name) for name in ("HOROVOD_SIZE", "HOROVOD_RANK")}
    found = {}
    for size in ("2", "3"):
        os.environ["OMPI_COMM_WORLD_SIZE"] = size
        try:
            found[size] = f"{tsps.collectives.current().size} ranks"
        except RuntimeError as error:
            found[size] = str(error)
    del os.environ["OMPI_COMM_WORLD_SIZE"]
    os.environ.update(kept)
    return found


def seeds(rank: int) -> dict[str, Any]:
    """Of the job's tables; each rank has set another."""
    return {"job": tsps.job.current().tables.seeds.seed, "of rank 0": TableSeeds("", "10", follow=False).seed}


WAYS: list[Callable[[int], dict[str, Any]]] = [fits, loops, loaded_on_rank_0, refused, launchers, seeds]


def main() -> None:
    """Tries every way."""
    rank = this_rank.init().rank
    outcomes = {way.__name__: way(rank) for way in WAYS}
    (FOLDER / f"outcomes-{rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
