"""One rank of the test that looking ahead changes no number of a sharded table.

Every model has a sharded table and a replicated one, which begin with the same rows and get the same gradients. The
dataset of each rank has its own delays, so that ranks know of coming batches at different times.

Arguments: the rows of a batch, a comma, and the number of abandoned iterators; the folder for results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import this_rank
from sharded_program import content, equal, together

import tf_sparse_ps as tsps
from tf_sparse_ps.config.placement import Sharded

keras = tf.keras
IDS, DIM, WIDTH = 1200, 4, 5
ROWS, BREAKS = map(int, sys.argv[1].split(","))
MEMORY = 1_840_000  # 1.5 MiB are buffers


def alike(rows: list[tf.Tensor], exact: bool) -> tf.Tensor:
    """Returns the sum of rows of two tables, which must be equal."""
    there, spread = rows
    if not exact:
        return there + spread
    with tf.control_dependencies([tf.debugging.assert_equal(there, spread, "looked-up rows differ")]):
        return there + spread


class Case:
    """A model, and its batches on this rank."""

    def __init__(self, name: str, storage: Any = "memory", wire: str = "float32", admission: Any = None) -> None:
        self.name, self.rows = name, ROWS
        ranks = tsps.collectives.current()
        self.random = np.random.default_rng([ranks.rank, len(name)])
        self.together = np.random.default_rng(len(name))  # draws the same on all ranks
        config = {"initializer": keras.initializers.Constant(0.5), "seed": 7, "admission": admission}
        self.there = tsps.Embedding(None, DIM, table=tsps.TableConfig(f"replicated_{name}", DIM, **config))
        sharded = tsps.TableConfig(f"sharded_{name}", DIM, placement=Sharded(wire), storage=storage, **config)
        self.spread = tsps.Embedding(None, DIM, table=sharded)
        inputs = keras.Input((WIDTH,), dtype="int64")
        turned = inputs[:, ::-1] * 3  # each layer is called a second time, with other ids
        # Both tables get the same gradient, whatever the lookups return. Every step also compares the lookups.
        looked_up = [
            keras.layers.Lambda(partial(alike, exact=wire == "float32"))([self.there(ids), self.spread(ids)])
            for ids in (inputs, turned)
        ]
        sums = keras.layers.Add()(looked_up)
        self.model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(sums)))
        self.model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
        self.model.optimizer.build(self.model.trainable_variables)
        self.model.train_on_batch(*self.data(1))
        self.begun = self.pulled()

    def data(self, batches: int) -> tuple[Any, Any]:
        """Returns x and y of a number of batches."""
        x = self.random.zipf(1.2, (batches * self.rows, WIDTH)) % IDS
        return x, self.random.normal(size=(batches * self.rows, 1)).astype(np.float32)

    def dataset(self, batches: int) -> Any:
        """Returns a dataset whose batches arrive at irregular times."""
        x, y = self.data(batches)

        def elements() -> Iterator[Any]:
            for b in range(batches):
                time.sleep(self.random.choice([0.0, 0.0, 0.002, 0.02]))
                part = slice(b * self.rows, (b + 1) * self.rows)
                yield x[part], y[part]

        signature = tf.TensorSpec((self.rows, WIDTH), tf.int64), tf.TensorSpec((self.rows, 1), tf.float32)
        delayed = tf.data.Dataset.from_generator(elements, output_signature=signature)
        return delayed.apply(tf.data.experimental.assert_cardinality(batches))

    def ahead(self, batches: int, n: int = 4) -> Any:
        """Returns the same dataset with lookahead."""
        return tsps.lookahead(self.dataset(batches), self.model, batches=n)

    def check(self, least: float) -> None:
        """Fails unless both tables are equal on all nodes. `least`: the share of rows that must have arrived before."""
        ranks = tsps.collectives.current()
        leader = ranks.local_rank == 0
        parts = ranks.allgather_object(content(self.spread) if leader else None, f"test.{self.name}")
        assert equal(together([part for part in parts if part is not None]), content(self.there)), self.name
        pulled, before = (now - then for now, then in zip(self.pulled(), self.begun, strict=True))
        print(f"{self.name}: {pulled:.0f} rows of other nodes, {before / pulled:.2f} before", flush=True)
        assert before >= least * pulled, (self.name, pulled, before)

    def pulled(self) -> tuple[float, float]:
        """Returns the number of other nodes' rows that this process has looked up, and how many had arrived before."""
        statistics = self.model.optimizer.statistics()
        return statistics["rows_pulled"], statistics["rows_pulled_before"]


def fit(case: Case) -> None:
    """Runs epochs with validation between them, with and without lookahead."""
    case.model.fit(case.ahead(12), epochs=2, validation_data=case.dataset(2), verbose=0)
    case.model.fit(case.ahead(12, 1), validation_data=case.ahead(3), verbose=0)
    case.model.fit(case.ahead(12, 32).repeat(), epochs=3, steps_per_epoch=5, verbose=0)


def breaks(case: Case) -> None:
    """Abandons iterators, and starts others."""
    for _ in range(BREAKS):
        steps = int(case.together.integers(1, 6))
        for number, (x, y) in enumerate(case.ahead(12)):
            case.model.train_on_batch(x, y)
            if number + 1 == steps:
                break


def apart(case: Case) -> None:
    """Some ranks look ahead and others do not. Some train other batches than they have announced."""
    rank = this_rank.rank()
    batches = iter(case.ahead(30) if rank == 0 else case.dataset(30))
    for number in range(20):
        x, y = next(batches)
        if rank == 0 and number % 4 == 1:
            x, y = case.data(1)
        case.model.train_on_batch(x, y)


def refused(case: Case) -> None:
    """Refused steps, and a table that is written between steps."""
    for number, (x, y) in enumerate(case.ahead(20)):
        if number % 5 == 3:
            with pytest.raises(tf.errors.InvalidArgumentError):
                case.model.train_on_batch(x, y * (np.nan if this_rank.rank() == 0 else 1.0))
            continue
        case.model.train_on_batch(x, y)
        if number == 9:
            keys = np.arange(0, 400, dtype=np.int64)
            for layer in (case.there, case.spread):
                layer.bindings[0].assign(keys, np.full((400, DIM), 0.25, np.float32))
            tsps.collectives.current().barrier("test.assigned")


def older_tape(case: Case) -> None:
    """A gradient of lookups is refused after a later step, while rows are fetched ahead."""
    layer, optimizer = case.spread, case.model.optimizer
    batches = iter(case.ahead(30))
    for _ in range(4):
        case.model.train_on_batch(*next(batches))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([3, 5, 7 + this_rank.rank()], tf.int64)))
    gradient = tape.gradient(loss, layer.trainable_variables)
    case.model.train_on_batch(*next(batches))
    with pytest.raises(tf.errors.FailedPreconditionError, match="not looked up since the last step"):
        optimizer.apply_gradients(zip(gradient, layer.trainable_variables, strict=True))


CASES: dict[str, tuple[Callable[[Case], None], float, dict[str, Any]]] = {
    "fit": (fit, 0.15, {}),
    "breaks": (breaks, 0.05, {}),
    "apart": (apart, 0.01, {"wire": "bfloat16"}),
    "refused": (refused, 0.1, {}),
    "tiered": (fit, 0.15, {"storage": tsps.Tiered(Path(sys.argv[2]) / "disk", memory=MEMORY)}),
    "admitting": (fit, 0.15, {"admission": tsps.Admission(2, 2**40)}),  # so large that no key is taken for another
    "older_tape": (older_tape, 0.0, {}),
}


def main() -> None:
    this_rank.init()
    for name, (train, least, config) in CASES.items():
        case = Case(name, **config)
        if name == "apart":  # a narrow wire rounds looked-up rows, so this only checks that the model trains
            train(case)
            continue
        train(case)
        case.check(least)
    tsps.collectives.current().barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
