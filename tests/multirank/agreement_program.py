"""One rank of a job whose ranks come to differ while they train, in several ways one after another.

Every rank records the outcome of each way. Arguments: the names of ways, separated by commas, and the folder for
results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps.reduction import agreement

keras = tf.keras
ROWS, DIM, IDS, BATCH = 16, 4, 3, 8
Found = dict[str, Any]


class Interrupted(keras.constraints.Constraint):
    """A constraint that halves the dense kernel. It is interrupted once, during the update of the dense weights."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, weight: Any) -> Any:
        """Returns half the weight."""
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return weight * 0.5


class Trained:
    """A model, its layers, and this rank's batches."""

    def __init__(
        self,
        *,
        rows: int | None = ROWS,
        tables: bool = True,
        inner: Any = None,
        eager: bool = False,
        constraint: Any = None,
        **options: Any,
    ) -> None:
        """Builds the model, the same on all ranks. `inner`: the wrapped optimizer. `constraint`: the dense kernel's."""
        keras.utils.set_random_seed(1)
        inputs = keras.Input([IDS], dtype="int64")
        self.table: Any = None
        if tables:
            placement = options.pop("placement", "replicated")
            self.table = tsps.Embedding(rows, DIM, placement=placement)
            features = keras.layers.Flatten()(self.table(inputs))
        else:
            features = keras.layers.CategoryEncoding(ROWS, "multi_hot")(inputs)
        self.dense = keras.layers.Dense(1, kernel_constraint=constraint)
        self.model = keras.Model(inputs, self.dense(features))
        optimizer = tsps.DistributedOptimizer(inner or keras.optimizers.Adam(0.05), **options)
        self.model.compile(optimizer, "mse", run_eagerly=eager)
        self.batches = np.random.default_rng(this_rank.rank())

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the next batch."""
        return self.batches.integers(0, ROWS, (BATCH, IDS)), self.batches.normal(size=(BATCH, 1)).astype(np.float32)

    def step(self, spoil: Callable[[np.ndarray], None] | None = None) -> str:
        """Makes one step; returns "made" or the error. `spoil` changes the ids in place."""
        ids, targets = self.batch()
        if spoil is not None:
            spoil(ids)
        try:
            self.model.train_on_batch(ids, targets)
        except (tf.errors.OpError, ValueError, KeyboardInterrupt) as error:
            return f"{type(error).__name__}: {error}"
        return "made"

    def fit(self, callbacks: list[Any]) -> None:
        """Trains one batch by `fit`."""
        ids, targets = self.batch()
        self.model.fit(ids, targets, BATCH, verbose=0, callbacks=callbacks)

    def state(self) -> list[Any]:
        """Returns the state that must be equal on all ranks."""
        values = [weight.tolist() for weight in self.dense.get_weights()]
        if self.table is not None:
            values.append(np.asarray(self.table(tf.range(ROWS, dtype=tf.int64))).tolist())
        return [*values, int(self.model.optimizer.iterations)]


def per_rank(usual: Any, differing: Any, rank: int = 1) -> Any:
    """Returns one value on one rank, and another on all others."""
    return differing if this_rank.rank() == rank else usual


def on(rank: int) -> bool:
    """Whether this process is that rank."""
    return this_rank.rank() == rank


def meet() -> None:
    """Waits for all ranks."""
    tsps.collectives.current().barrier("test.meet")


def rate(**options: Any) -> Found:
    """Rank 1 sets another learning rate, and back."""
    trained = Trained(**options)
    outcomes_of_steps = [trained.step(), trained.step()]
    before = trained.state()
    trained.model.optimizer.inner_optimizer.learning_rate.assign(per_rank(0.05, 0.1))
    outcomes_of_steps.append(trained.step())
    unmoved = trained.state() == before
    trained.model.optimizer.inner_optimizer.learning_rate.assign(0.05)
    outcomes_of_steps += [trained.step(), trained.step()]
    return {"said": outcomes_of_steps, "unmoved": unmoved, "state": trained.state()}


def option() -> Found:
    """Rank 1 has another beta."""
    trained = Trained(inner=keras.optimizers.Adam(0.05, beta_1=per_rank(0.9, 0.5)))
    return {"said": [trained.step()]}


def rows(by: int) -> Found:
    """One rank writes rows between two steps. Then its rows are broadcast."""
    trained = Trained()
    outcomes_of_steps = [trained.step()]
    meet()
    if on(by):
        trained.table.set_weights([np.full((ROWS, DIM), 3.0, np.float32)])
    meet()
    outcomes_of_steps.append(trained.step())
    trained.fit([tsps.callbacks.BroadcastVariables(root=by)])
    outcomes_of_steps.append(trained.step())
    state = trained.state()
    meet()
    # All ranks write the same, so nothing is refused.
    trained.table.set_weights([np.full((ROWS, DIM), 2.0, np.float32)])
    outcomes_of_steps.append(trained.step())
    return {"said": outcomes_of_steps, "state": state, "end": trained.state()}


def rows_before() -> Found:
    """The last leader alone loads weights before the first step. Then they are broadcast."""
    leader = tsps.job.current().leaders[-1]
    trained = Trained()
    if on(leader):
        trained.model.set_weights([np.full(weight.shape, 7.0, np.float32) for weight in trained.model.get_weights()])
    meet()
    trained.model.optimizer.learning_rate.assign(0.0)
    trained.fit([tsps.callbacks.BroadcastVariables(root=leader)])
    return {"said": [trained.step()], "state": trained.state()}


def dense(**options: Any) -> Found:
    """Rank 1 sets dense weights between two steps. Then they are broadcast."""
    trained = Trained(**options)
    outcomes_of_steps = [trained.step()]
    if on(1):
        trained.dense.set_weights([weight + 1.0 for weight in trained.dense.get_weights()])
    outcomes_of_steps.append(trained.step())
    trained.fit([tsps.callbacks.BroadcastVariables(root=1)])
    outcomes_of_steps.append(trained.step())
    return {"said": outcomes_of_steps, "state": trained.state()}


def best_weights() -> Found:
    """Rank 0 alone restores the best weights of an epoch, when it stops: Keras 2 restores them only then."""
    trained = Trained()
    ids, targets = trained.batch()
    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
    trained.model.fit(ids, targets, BATCH // 2, epochs=3, verbose=0, callbacks=[stop] if on(0) else [])
    meet()
    return {"said": [trained.step()]}


def look_up(**options: Any) -> Found:
    """Rank 1 looks up an id out of range in two of six steps."""
    trained = Trained(**options)

    def spoil(ids: np.ndarray) -> None:
        if on(1):
            ids[2, 1] = 5000

    outcomes_of_steps = [trained.step(spoil if i in (0, 3) else None) for i in range(6)]
    ids, _ = trained.batch()
    ids[0, 0] = 5000
    try:  # outside of steps the lookup fails at once, on this rank alone
        trained.model.predict_on_batch(ids)
        alone = "read"
    except tf.errors.InvalidArgumentError as error:
        alone = str(error)
    return {"said": outcomes_of_steps, "alone": alone, "state": trained.state()}


def look_up_without_a_step() -> Found:
    """A lookup that a tape records fails, and no step follows."""
    trained = Trained()
    trained.step()
    with tf.GradientTape():
        zeros = trained.table(tf.constant([5000], tf.int64))
    outcomes_of_steps = []
    for _ in range(2):
        try:
            trained.table(tf.constant([1], tf.int64))
            outcomes_of_steps.append("read")
        except tf.errors.InvalidArgumentError as error:
            outcomes_of_steps.append(str(error))
    return {"zeros": float(tf.reduce_sum(tf.abs(zeros))), "said": outcomes_of_steps}


def interrupted(ranks: Callable[[], bool]) -> Found:
    """Some ranks are interrupted between the tables' step and the update of the dense weights."""
    constraint = Interrupted()
    trained = Trained(eager=True, constraint=constraint)
    outcomes_of_steps = [trained.step()]
    constraint.armed = ranks()
    outcomes_of_steps += [trained.step(), trained.step()]
    trained.fit([tsps.callbacks.BroadcastVariables(root=0)])
    outcomes_of_steps.append(trained.step())
    return {"said": outcomes_of_steps, "state": trained.state()}


def two_batches_per_step() -> Found:
    """A loop that makes one update of two batches stops, and another one resumes from its checkpoint."""
    folder = Path(sys.argv[2], "two-batches")
    read: list[list[int]] = []
    for updates in (3, 2):
        trained = Trained(inner=keras.optimizers.SGD(0.05))
        checkpointer = tsps.Checkpointer(str(folder), trained.model, trained.model.optimizer)
        checkpointer.restore()
        batches = iter(checkpointer.dataset(lambda _: tf.data.Dataset.range(40)))
        read.append([])
        for _ in range(updates):
            numbers = [int(next(batches)) for _ in range(2)]
            read[-1] += numbers
            ids = tf.constant(numbers, tf.int64)[:, None] % ROWS + tf.zeros([1, IDS], tf.int64)
            trained.model.train_on_batch(ids, tf.ones([2, 1]))
        checkpointer.save()
        checkpointer.wait()
    return {"read": read, "state": trained.state()}


def two_writes() -> Found:
    """Rank 0 writes alone, and then all ranks do, rank 0 last."""
    table = tsps.Embedding(ROWS, DIM, "zeros")
    table.build(None)
    meet()
    if on(0):
        table.set_weights([np.full((ROWS, DIM), 1.0, np.float32)])
    meet()
    if on(0):
        import time  # the first write must not release the other ranks

        time.sleep(0.5)
    table.set_weights([np.full((ROWS, DIM), 2.0, np.float32)])
    return {"read": float(np.asarray(table(tf.constant([7], tf.int64)))[0, 0])}


def at_averages() -> Found:
    """Rank 1 has another learning rate under a delayed schedule, whose ranks meet at the end of a cycle."""
    trained = Trained(inner=keras.optimizers.SGD(0.05), schedule=tsps.schedules.DelayedGlobal(cycle=3, staleness=1))
    outcomes_of_steps = [trained.step() for _ in range(3)]
    trained.model.optimizer.inner_optimizer.learning_rate.assign(per_rank(0.05, 0.1))
    outcomes_of_steps += [trained.step() for _ in range(2)]
    outcomes_of_steps.append(trained.step())
    return {"said": outcomes_of_steps}


def control() -> Found:
    """Nothing notices rank 1's learning rate without the comparison."""
    agreement.compared = False
    try:
        trained = Trained()
        outcomes_of_steps = [trained.step()]
        trained.model.optimizer.inner_optimizer.learning_rate.assign(per_rank(0.05, 0.1))
        outcomes_of_steps += [trained.step(), trained.step()]
    finally:
        agreement.compared = True
    return {"said": outcomes_of_steps, "state": trained.state()}


BUCKETS = tsps.schedules.TimedBuckets(profile_steps=1, max_profiles=1)
WAYS: dict[str, Callable[[], Found]] = {
    "rate": rate,
    "rate, flat": lambda: rate(topology="flat"),
    "rate, clipped": lambda: rate(inner=keras.optimizers.Adam(0.05, global_clipnorm=1.0)),
    "rate, eager": lambda: rate(eager=True),
    "rate, sharded": lambda: rate(placement=tsps.Sharded()),
    "rate, dense": lambda: rate(tables=False),
    "rate, dense, eager": lambda: rate(tables=False, eager=True),
    "rate, dense, buckets": lambda: rate(tables=False, schedule=BUCKETS),
    "option": option,
    "rows of rank 0": lambda: rows(0),
    "rows of the last leader": lambda: rows(tsps.job.current().leaders[-1]),
    "rows before": rows_before,
    "dense": dense,
    "dense, dense": lambda: dense(tables=False),
    "best weights": best_weights,
    "look-up": look_up,
    "look-up, flat": lambda: look_up(topology="flat"),
    "look-up, eager": lambda: look_up(eager=True),
    "look-up, clipped": lambda: look_up(inner=keras.optimizers.Adam(0.05, global_clipnorm=1.0)),
    "look-up without a step": look_up_without_a_step,
    "interrupted": lambda: interrupted(lambda: True),
    "interrupted on rank 1": lambda: interrupted(lambda: on(1)),
    "two batches per step": two_batches_per_step,
    "two writes": two_writes,
    "at averages": at_averages,
    "control": control,
}


def main() -> None:
    """Tries the ways."""
    this_rank.init()
    names = sys.argv[1].split(";") if sys.argv[1] else list(WAYS)
    outcomes = {}
    for name in names:
        outcomes[name] = WAYS[name]()
        outcomes_of_steps = [text[-250:] for text in outcomes[name].get("said", [])]  # without TensorFlow's traceback
        print(f"rank {this_rank.rank()}: {name}: {outcomes_of_steps}", flush=True)
        meet()
    (Path(sys.argv[2]) / f"outcomes-{this_rank.rank()}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
