"""One rank of jobs under DelayedGlobal as users run them: `fit`, and loops on ranks of unequal speed.

Arguments: "fit", "unequal", "late", "late-adam", "undrained", "saving" or "broadcast"; the folder for results.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.schedules import bucket_plan

keras = tf.keras
_EPOCHS, _BATCHES, _SIZE = 3, 12, 8  # the number of batches is no multiple of the cycle
UNEQUAL_STEPS = 40


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits until a condition is true, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)


def make_model(schedule: Any, rate: float = 0.05, **options: Any) -> Any:
    """Returns a model with a table, normalisation and dense layers. Dense weights differ until they are broadcast."""
    keras.utils.set_random_seed(7 + this_rank.rank())
    ids = keras.layers.Input((3,), dtype="int64")
    x = keras.layers.Flatten()(tsps.Embedding(None, 4)(ids))
    x = keras.layers.BatchNormalization(momentum=0.8)(keras.layers.Dense(6, activation="relu")(x))
    model = keras.Model(ids, keras.layers.Dense(1)(x))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(rate), schedule=schedule), "mse", **options)
    return model


def data(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the data of one rank."""
    inputs = np.random.default_rng(rank).integers(0, 50, (_BATCHES * _SIZE, 3))
    return inputs, (inputs % 7).sum(1, keepdims=True).astype("float32")


def dense_weights(model: Any) -> np.ndarray:
    """Returns the weights of all layers but the table's, including statistics."""
    return np.concatenate([np.ravel(array) for layer in model.layers[2:] for array in layer.get_weights()])


class Watch(keras.callbacks.Callback):
    """Records the state at the end of each epoch, after the callbacks before it."""

    def __init__(self) -> None:
        """Starts without records."""
        super().__init__()
        self.weights: list[np.ndarray] = []
        self.apart = 0
        self.rates: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Records whether gradients are outstanding."""
        self.apart += self.model.optimizer._step_builder.outstanding()
        # Whatever else ranks do meanwhile must not disturb it.
        tsps.collectives.current().allgather_object(batch, "test.metric")
        if this_rank.rank() == 0:
            self.model(data(9)[0][:_SIZE], training=False)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Records the weights, including statistics."""
        self.weights.append(dense_weights(self.model))
        self.rates.append(float(np.asarray(self.model.optimizer.learning_rate)))


def fit() -> dict[str, Any]:
    """Runs `fit` with validation on all ranks, averaged metrics, a rate schedule and several steps per call."""
    model = make_model(tsps.schedules.DelayedGlobal(staleness=2, cycle=5), steps_per_execution=3)
    watch = Watch()
    callbacks = [
        tsps.callbacks.BroadcastVariables(),
        tsps.callbacks.Drain(),
        tsps.callbacks.MetricAverage(),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 / (1 + epoch)),
        watch,
    ]
    history = model.fit(
        *data(this_rank.rank()), batch_size=_SIZE, epochs=_EPOCHS, verbose=0, shuffle=False, callbacks=callbacks,
        validation_data=data(9),
    )  # fmt: skip
    return {
        "losses": np.array(history.history["loss"]),
        "validation": np.array(history.history["val_loss"]),
        "weights": np.stack(watch.weights),
        "last": dense_weights(model),
        "rows": np.asarray(model.layers[1](tf.range(50))),
        "apart": watch.apart,
        "rates": watch.rates,
        **model.optimizer.schedule_report(),
    }


def unequal() -> dict[str, Any]:
    """Every rank sometimes sleeps, and one always does. No rank waits for another, except for the bound."""
    model = make_model(tsps.schedules.DelayedGlobal(staleness=3, cycle=15))
    optimizer = model.optimizer
    optimizer.also_average(lambda: model.non_trainable_variables)
    random, (inputs, targets) = np.random.default_rng(this_rank.rank()), data(this_rank.rank())

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    bounds, ahead, bound_used = [], [], Path(sys.argv[2]) / "bound-used"
    for i in range(UNEQUAL_STEPS):
        if this_rank.rank() == 1 and i == UNEQUAL_STEPS // 4:
            wait_for(bound_used.exists)  # no other rank can go further now
        part = slice(i % _BATCHES * _SIZE, (i % _BATCHES + 1) * _SIZE)
        step(tf.constant(inputs[part]), tf.constant(targets[part]))
        report = optimizer.schedule_report()
        bounds.append(report["iterations"] - report["global_gradients"])
        ahead.append(int(tsps.job.current().step.numpy()) - report["iterations"])
        if bounds[-1] == 3:
            bound_used.touch()
        time.sleep(0.004 * (this_rank.rank() == 1) + 0.02 * (random.random() < 0.15))
    optimizer.drain()
    return {
        "last": dense_weights(model),
        "rows": np.asarray(model.layers[1](tf.range(50))),
        "outstanding": bounds,
        "ahead": ahead,
        "table_steps": int(tsps.job.current().step.numpy()),
        **optimizer.schedule_report(),
    }


LATE_CYCLE, LATE_RATE = 8, 0.125
LATE_STEPS = 3 * LATE_CYCLE
_FIRST = (3, 6)  # the other ranks' steps of a cycle before the late rank makes its first and its second step


def late(rule: Any = keras.optimizers.SGD) -> dict[str, Any]:
    """One rank is much later than the others, which do not wait for it. Every gradient is -1, at a place of each rank.

    In each cycle, the other ranks must make some steps before the late rank makes its first and its second step, and
    all their steps before it makes its third.
    """
    dense = tf.Variable(tf.zeros([this_rank.size()]))
    layer = tsps.Embedding(None, 2, embeddings_initializer="zeros")
    layer.build(None)
    optimizer = tsps.DistributedOptimizer(
        rule(LATE_RATE),
        sparse_reduction="sum",
        schedule=tsps.schedules.DelayedGlobal(staleness=2, cycle=LATE_CYCLE, late_after_s=0.03),
    )

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = -dense[this_rank.rank()] - tf.reduce_sum(layer(tf.constant([100, this_rank.rank()], tf.int64)))
        variables = [*layer.trainable_variables, dense]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def steps_file(rank: int) -> Path:
        return Path(sys.argv[2]) / f"steps-{rank}"

    def others_made(steps: int) -> bool:
        return all(steps_file(rank).stat().st_size >= steps for rank in range(this_rank.size()) if rank != 1)

    steps_file(this_rank.rank()).touch()
    tsps.collectives.current().barrier("test.begin")
    outstanding, ends = [], []
    for i in range(LATE_STEPS):
        if this_rank.rank() == 1:
            cycle, number = divmod(i, LATE_CYCLE)
            before = cycle * LATE_CYCLE + (_FIRST[number] if number < len(_FIRST) else LATE_CYCLE)
            # The wait is limited: ranks that were late for each other have communicated often, and wait for this one.
            wait_for(lambda before=before: others_made(before), seconds=3.0)
        step()
        with steps_file(this_rank.rank()).open("a") as file:
            file.write(".")
        report = optimizer.schedule_report()
        outstanding.append(report["iterations"] - report["global_gradients"] + report["without_own"])
        if (i + 1) % LATE_CYCLE == 0:
            ends.append(dense.numpy())
    optimizer.drain()
    return {
        "ends": np.stack(ends),
        "last": dense.numpy(),
        "rows": np.asarray(layer(tf.constant([100, *range(this_rank.size())], tf.int64))),
        "outstanding": outstanding,
        **optimizer.schedule_report(),
    }


def undrained() -> dict[str, Any]:
    """The program ends with gradients in flight, on one rank much later than on the others."""
    model = make_model(tsps.schedules.DelayedGlobal(staleness=3, cycle=100))
    inputs, targets = data(this_rank.rank())
    for i in range(8):
        model.train_on_batch(inputs[:_SIZE], targets[:_SIZE])
        time.sleep(0.2 * (this_rank.rank() == 1 and i > 3))
    return {"iterations": model.optimizer.schedule_report()["iterations"]}


def saving() -> dict[str, Any]:
    """Saving in the middle of a cycle is refused; after `drain`, rank 0 saves alone. Then sparse=False."""
    model = make_model(tsps.schedules.DelayedGlobal(cycle=100))
    inputs, targets = data(this_rank.rank())
    message = ""
    for _ in range(2):
        model.train_on_batch(inputs[:_SIZE], targets[:_SIZE])
    path = Path(sys.argv[2]) / f"model-{this_rank.rank()}.keras"
    if this_rank.rank() == 0:
        try:
            model.save(path)
        except RuntimeError as error:
            message = str(error)
    model.optimizer.drain()
    if this_rank.rank() == 0:
        model.save(path)
    model = make_model(tsps.schedules.DelayedGlobal(sparse=False))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.train_on_batch(inputs[:_SIZE], targets[:_SIZE])
    steps = int(tsps.job.current().step.numpy())
    model.optimizer.drain()
    return {
        "said": message,
        "saved": path.exists(),
        "warned": [str(warning.message) for warning in warned],
        "steps": steps,
    }


def broadcast() -> dict[str, Any]:
    """Broadcasts variables while a rank lacks gradients or slots; and the same after a drain."""
    schedules = {
        "delayed": lambda _: tsps.schedules.DelayedGlobal(staleness=2, cycle=50, sparse=False, reproducible=True),
        "server": lambda model: tsps.schedules.TimedBuckets(server=True, plan=plan_of(model)),
    }
    results: dict[str, Any] = {}
    for name, schedule in schedules.items():
        for drains in (False, True):
            keras.utils.set_random_seed(3)
            model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.1), schedule=schedule(model)), "mse")
            inputs, targets = data(this_rank.rank())
            for start in range(0, 4 * _SIZE, _SIZE):
                model.train_on_batch(inputs[start : start + _SIZE] * 0.01, targets[start : start + _SIZE])
            said = "no error"
            try:
                model.save(Path(sys.argv[2]) / f"{name}-{this_rank.rank()}.keras")
            except RuntimeError as error:
                said = str(error)
            if drains:
                model.optimizer.drain()
            callbacks = [tsps.callbacks.BroadcastVariables(), tsps.callbacks.Drain()]
            model.fit(inputs * 0.01, targets, batch_size=_SIZE, shuffle=False, verbose=0, callbacks=callbacks)
            model.save(Path(sys.argv[2]) / f"{name}-{this_rank.rank()}.keras")
            results |= {
                f"{name}{drains}": np.concatenate([w.ravel() for w in model.get_weights()]),
                f"{name}said": said,
            }
    return results


def plan_of(model: Any) -> Any:
    """Returns a plan for a model with two weights: one bucket, which rank 1 updates."""
    gradients = [
        bucket_plan.Gradient(_keras.variable_name(variable), tuple(variable.shape), "float32")
        for variable in model.trainable_variables
    ]
    return tsps.schedules.Plan(tuple(gradients), this_rank.size(), ((0, 1),), owners=(1,))


def main() -> None:
    """Runs the job of the first argument."""
    this_rank.init()
    jobs = {
        "fit": fit,
        "unequal": unequal,
        "late": late,
        "undrained": undrained,
        "saving": saving,
        "broadcast": broadcast,
    }
    jobs["late-adam"] = lambda: late(keras.optimizers.Adam)
    np.savez(Path(sys.argv[2]) / f"{sys.argv[1]}-{this_rank.rank()}.npz", **jobs[sys.argv[1]]())


if __name__ == "__main__":
    main()
