"""One rank of the tests of TimedBuckets. It writes its final state, and what it sent; the tests compare them.

Profiles are of real steps, but their times are invented: plans, and how often a profile is made, must not depend on
other work of the machine.

Arguments: "four" for the runs of four ranks, or the names of runs of two ranks, separated by commas; the folder for
results.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank
from bucket_sizes import GATE, HALVES, NO_SAMPLES, PROFILE, SIZES, STEPS

import tf_sparse_ps as tsps
from benchmarks.operation_counts import operation_counts
from tf_sparse_ps import _ops
from tf_sparse_ps.schedules import bucket_cost

keras = tf.keras
SEPARATE = (0.0, 0.0, 0.012, 0.0, 0.0)  # recorded seconds of the gradient in front of each layer
GIVE_UP_S = 60.0
Seconds = Callable[[int], Sequence[float]]  # the seconds of a step
results: dict[str, Any] = {}
recorded_times = _ops.ready_times


def say_ready_times(seconds: Seconds) -> None:
    """Makes steps be recorded as if the gradient took this long in front of each layer, and 10 us in the layer."""
    steps = [0] * (2 * len(SIZES) - 2)

    def ready_times(profile: str) -> list[tuple[int, int]]:
        times = []
        for gradient, _ in recorded_times(profile):
            layer, step = gradient // 2, steps[gradient]
            steps[gradient] += 1
            later = [1e-5 + duration for duration in seconds(step)[layer + 1 :]]
            times.append((gradient, int(1e9 * (step + sum(later)))))
        return times

    _ops.ready_times = ready_times


def gated(values: tf.Tensor, gate: Callable[[], None]) -> tf.Tensor:
    """Returns the same values. Their gradient arrives when `gate` returns."""

    @tf.custom_gradient
    def identity(inputs: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            def wait(array: np.ndarray) -> np.ndarray:
                gate()
                return array

            return tf.ensure_shape(tf.numpy_function(wait, [upstream], tf.float32), upstream.shape)

        return tf.identity(inputs), gradient

    return identity(values)


class UntilSent:
    """A gate, called once per step, that opens when a bucket of the step has been sent and summed over the ranks.

    Attributes:
      opened: The number of times that it opened for this reason.
    """

    def __init__(self, bucket: int, seconds: float = GIVE_UP_S) -> None:
        """`bucket`: the number of the bucket. `seconds`: the time after which the gate opens in any case."""
        self._bucket, self._seconds, self.opened = f".bucket.{bucket}.", seconds, 0
        self._steps = self._sent()

    def __call__(self) -> None:
        """Waits until the gate opens."""
        self._steps += 1
        deadline = time.monotonic() + self._seconds
        while not (sent := self._sent() == self._steps) and time.monotonic() < deadline:
            time.sleep(0.001)
        self.opened += sent

    def _sent(self) -> int:
        return sum(n for label, n in operation_counts(tsps.collectives.current()).items() if self._bucket in label)


def first_weights() -> list[tf.Variable]:
    random, weights = np.random.default_rng(3), []
    for number, (rows, columns) in enumerate(itertools.pairwise(SIZES)):
        weights.append(tf.Variable(random.normal(size=(rows, columns)).astype("float32") * 0.3, name=f"matrix{number}"))
        weights.append(tf.Variable(np.zeros(columns, np.float32), name=f"bias{number}"))
    return weights


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([step, this_rank.rank()])
    return random.normal(size=(8, SIZES[0])).astype("float32"), random.normal(size=(8, 1)).astype("float32")


def train(
    name: str,
    optimizer: Any,
    schedule: tsps.schedules.Schedule,
    *,
    steps: int = STEPS,
    seconds: Seconds = lambda step: SEPARATE,
    gate: Callable[[], None] | None = None,
    weights_differ: bool = False,
    eager: bool = False,
) -> Any:
    """Trains in a loop; records weights, slots and how often each operation ran; returns the wrapper."""
    print(f"rank {this_rank.rank()}: {name}", flush=True)
    say_ready_times(seconds)
    weights, world = first_weights(), tsps.collectives.current()
    ours = tsps.DistributedOptimizer(optimizer, schedule=schedule)
    before = operation_counts(world)

    def step(inputs: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            hidden = inputs
            for number in range(len(SIZES) - 1):
                if gate is not None and number == GATE:
                    hidden = gated(hidden, gate)
                hidden = tf.tanh(hidden @ weights[2 * number] + weights[2 * number + 1])
            loss = tf.reduce_mean((hidden - targets) ** 2)
        ours.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    run = step if eager else tf.function(step, autograph=False)
    for number in range(steps):
        inputs, targets = batch(number)
        if weights_differ:
            absent = number in NO_SAMPLES and this_rank.rank() == this_rank.size() - 1
            ours.rank_weight.assign(0.0 if absent else 1.0 + this_rank.rank())
            inputs = inputs * np.float32(np.nan) if absent else inputs
        run(tf.constant(inputs), tf.constant(targets))
    kept = [np.asarray(slot) for slot in ours.variables]
    ours.drain()
    note(name, weights, ours, before)
    results[name]["slots before drain"] = kept
    return ours


def note(name: str, weights: list[Any], ours: Any, before: dict[str, int]) -> None:
    ran = {
        label.split(".", 2)[2]: count - before.get(label, 0)
        for label, count in operation_counts(tsps.collectives.current()).items()
        if count > before.get(label, 0) and label.startswith("tsps.") and label.count(".") > 1
    }
    plan = ours.schedule_report().get("plan")
    results[name] = {
        "weights": [np.asarray(weight) for weight in weights],
        "slots": [np.asarray(slot) for slot in ours.variables],
        "ran": ran,
        "plan": None if plan is None else plan.to_dict(),
        "hash": None if plan is None else plan.hash,
    }


def fit(name: str, schedule: tsps.schedules.Schedule) -> None:
    """Runs `fit` on a model with a table: two steps per execution, except the last one of an epoch, which has one."""
    keras.utils.set_random_seed(7)
    ids = keras.layers.Input((3,), dtype="int64")
    hidden = keras.layers.Flatten()(tsps.Embedding(None, 4, embeddings_initializer="ones")(ids))
    for _ in range(3):
        hidden = keras.layers.Dense(8, activation="tanh")(hidden)
    model = keras.Model(ids, keras.layers.Dense(1)(hidden))
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1), schedule=schedule)
    model.compile(optimizer, "mse", steps_per_execution=2)
    inputs = np.random.default_rng(this_rank.rank()).integers(0, 50, (7 * 8, 3))
    before = operation_counts(tsps.collectives.current())
    callbacks = [tsps.callbacks.BroadcastVariables()]
    model.fit(inputs, inputs.sum(1) % 7, batch_size=8, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    note(name, [*model.trainable_variables[1:], model.layers[1](tf.range(50))], optimizer, before)


def errors() -> dict[str, str]:
    """Returns the errors of settings that cannot work."""
    errors_by_name = {}
    rank, size = this_rank.rank(), this_rank.size()

    def attempt(name: str, schedule: Callable[[], Any]) -> None:
        try:
            train(f"refused {name}", keras.optimizers.SGD(0.1), schedule(), steps=1)
            errors_by_name[name] = "no error"
        except ValueError as error:
            errors_by_name[name] = str(error)

    good = tsps.schedules.Plan.of(results["slow on other ranks"]["plan"])
    swapped = (good.buckets[1], good.buckets[0], *good.buckets[2:])

    def changed(**values: Any) -> Any:
        return tsps.schedules.TimedBuckets(plan=good.to_dict() | values)

    attempt("other plans", lambda: changed(buckets=swapped) if rank == 1 else changed())
    attempt("other model", lambda: changed(gradients=good.to_dict()["gradients"][::-1]))
    attempt("other size", lambda: changed(world_size=size + 1))
    return errors_by_name


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "momentum-clipnorm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05),
    "adagrad-clipvalue": lambda: keras.optimizers.Adagrad(0.1, clipvalue=0.01),
    "global": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
    "weighted": lambda: keras.optimizers.Adam(0.01),
}


def pair(names: list[str]) -> None:
    """Makes runs of two ranks.

    Args:
      names: Names of `OPTIMIZERS`, alone, with " buckets" or with " server"; "eager", "planned", "two halves",
        "two halves turned"; "fit", "fit buckets", "fit server".
    """
    # The wire is slow, so that several buckets are worthwhile.
    bucket_cost.measure = lambda *_: bucket_cost.Cost(1e-4, 1e-7)
    timed, synchronous = tsps.schedules.TimedBuckets, tsps.schedules.Synchronous
    if {"planned", "two halves", "two halves turned"} & set(names):
        names = list(dict.fromkeys([*names, "sgd buckets"]))
    for name, make in OPTIMIZERS.items():
        options = {"weights_differ": name == "weighted"}
        if name in names:
            train(name, make(), synchronous(), **options)
        for server in (False, True):
            if (run := f"{name} {'server' if server else 'buckets'}") in names:
                train(run, make(), timed(profile_steps=PROFILE, gap_threshold=1.0, server=server), **options)
    if "eager" in names:
        train("eager", keras.optimizers.SGD(0.1), timed(profile_steps=PROFILE, gap_threshold=1.0), eager=True)
    if "sgd buckets" in names:
        with_plan(names, tsps.schedules.Plan.of(results["sgd buckets"]["plan"]))
    _ops.ready_times = recorded_times
    for name, schedule in (
        ("fit", synchronous()),
        ("fit buckets", timed(profile_steps=4)),
        ("fit server", timed(profile_steps=4, server=True)),
    ):
        if name in names:
            fit(name, schedule)


def with_plan(names: list[str], plan: Any) -> None:
    """Makes runs with a given plan, or with one that is derived from it."""
    timed = tsps.schedules.TimedBuckets
    if "planned" in names:
        train("planned", keras.optimizers.SGD(0.1), timed(plan=plan))
    halves = plan.to_dict() | {"buckets": HALVES, "points_s": []}
    if "two halves" in names:  # the gradient of the second half arrives after the first half has been sent
        gate = UntilSent(0)
        train("two halves", keras.optimizers.SGD(0.1), timed(plan=halves), gate=gate)
        results["two halves"]["sent at the gate"] = gate.opened
    if "two halves turned" in names:
        # The second half of the plan is ready at the gate; the first half comes later. The gate gives the second half
        # time to overtake.
        turned, gate = halves | {"buckets": HALVES[::-1]}, UntilSent(1, seconds=0.02)
        train("two halves turned", keras.optimizers.SGD(0.1), timed(plan=turned), gate=gate)
        results["two halves turned"]["sent at the gate"] = gate.opened


def four() -> None:
    """Four ranks with the measured cost; then ranks that are slow in other places, erratic ranks, and refusals."""
    train("adam", keras.optimizers.Adam(0.01), tsps.schedules.Synchronous())
    schedule = tsps.schedules.TimedBuckets(profile_steps=PROFILE)
    train("adam buckets", keras.optimizers.Adam(0.01), schedule)
    bucket_cost.measure = lambda *_: bucket_cost.Cost(1e-4, 1e-7)
    place = this_rank.rank() % (len(SIZES) - 2) + 1
    slow = (np.eye(len(SIZES) - 1)[place] * 0.015).tolist()
    schedule = tsps.schedules.TimedBuckets(profile_steps=PROFILE)
    train("slow on other ranks", keras.optimizers.SGD(0.1), schedule, seconds=lambda step: slow)
    # Each step is slow in front of another layer: the medians jump where only one step of three does.
    schedule = tsps.schedules.TimedBuckets(profile_steps=PROFILE, gap_threshold=0.01, max_profiles=2)
    erratic = (np.eye(len(SIZES) - 1) * 0.03).tolist()
    train("erratic", keras.optimizers.SGD(0.1), schedule, seconds=lambda step: erratic[1 + step % 3])
    (Path(sys.argv[2]) / f"errors-{this_rank.rank()}.json").write_text(json.dumps(errors()))


def main() -> None:
    """Makes all runs that the tests look at."""
    tf.config.threading.set_intra_op_parallelism_threads(1)  # sums in the same order every time
    tf.config.threading.set_inter_op_parallelism_threads(4)  # a gate blocks one of them
    this_rank.init()
    if sys.argv[1] == "four":
        four()
    else:
        pair(sys.argv[1].split(","))
    for name, values in results.items():
        arrays = {
            f"{kind} {i}": array
            for kind in ("weights", "slots", "slots before drain")
            for i, array in enumerate(values.get(kind, []))
        }
        facts = json.dumps({key: values.get(key) for key in ("ran", "plan", "hash", "sent at the gate")})
        np.savez(Path(sys.argv[2]) / f"{name}-{this_rank.rank()}.npz", facts=np.array(facts), **arrays)


if __name__ == "__main__":
    main()
