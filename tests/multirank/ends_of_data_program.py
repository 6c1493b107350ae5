"""One rank of the test of data whose end only the data itself shows. Now one rank is late there, now another.

Arguments: the names of the cases, separated by commas; the folder for results. Every case trains twice: with data of
unknown and of known length.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops

keras = tf.keras
EPOCHS, STEPS, BATCH, IDS, DIM = 4, 3, 6, 50, 4
LATE_S = 0.4
# With this, a variable has a gradient that does not depend on the data.
CONSTANT = keras.regularizers.L2(0.1)
CASES: dict[str, dict[str, Any]] = {
    "dense": {"tables": 0},
    "synchronous": {},
    "clipped": {"clip": 0.1},
    "sharded": {"placement": tsps.Sharded()},
    "buckets": {"schedule": lambda: tsps.schedules.TimedBuckets(profile_steps=2)},
    "delayed": {"schedule": lambda: tsps.schedules.DelayedGlobal(staleness=2, cycle=4, reproducible=True)},
    "delayed_dense": {
        "schedule": lambda: tsps.schedules.DelayedGlobal(staleness=1, cycle=5, sparse=False, reproducible=True)
    },
    "several": {"steps_per_execution": 2},
    "constant_ids": {"placement": tsps.Sharded(), "constant_ids": True},
    "loop": {"loop": "plain"},
    "tape": {"loop": "plain", "tape": True},
    # The function takes data in a function of its own; twice; after the step; after a step that needs no data.
    "nested": {
        "loop": "nested",
        "schedule": lambda: tsps.schedules.DelayedGlobal(staleness=2, cycle=4, reproducible=True),
    },
    "unrolled": {"loop": "unrolled"},
    "ahead": {"loop": "ahead"},
    "noise": {"loop": "noise", "updates": EPOCHS * (2 * STEPS + 1)},
}
if not hasattr(keras, "ops"):  # Keras 2 does not take several steps at once of data of unknown length
    del CASES["several"]


def batches() -> tuple[np.ndarray, np.ndarray]:
    """Returns this rank's ids and targets."""
    random = np.random.default_rng(this_rank.rank())
    ids = random.integers(0, IDS, (STEPS, BATCH, 2))
    return ids, random.normal(size=(STEPS, BATCH, 1)).astype(np.float32)


def late_dataset() -> tf.data.Dataset:
    """Returns this rank's data with a wait before its end. In each epoch another rank waits."""
    epochs = 0

    def data() -> Any:
        nonlocal epochs
        epochs += 1  # and validations
        yield from zip(*batches(), strict=True)
        if epochs % this_rank.size() == this_rank.rank():
            time.sleep(LATE_S)

    signature = (tf.TensorSpec([BATCH, 2], tf.int64), tf.TensorSpec([BATCH, 1], tf.float32))
    return tf.data.Dataset.from_generator(data, output_signature=signature)


class ConstantIds(keras.layers.Layer):
    """Looks up constant ids before those of the input."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of the ids, flat, plus the sum of the others."""
        total = tf.reduce_sum(self.table(tf.range(4)))
        return tf.reshape(self.table(ids), [BATCH, 2 * DIM]) + 0.1 * total


def train(case: dict[str, Any], dataset: tf.data.Dataset) -> dict[str, np.ndarray]:
    """Trains a new model. Returns its rows and weights and the number of updates."""
    keras.utils.set_random_seed(1)
    layers = [
        tsps.Embedding(None, DIM, embeddings_initializer="ones", placement=case.get("placement", "replicated"))
        for _ in range(case.get("tables", 1))
    ]
    inputs = keras.Input([2], dtype="int64")
    flat = [
        ConstantIds(layer)(inputs) if "constant_ids" in case else keras.layers.Flatten()(layer(inputs))
        for layer in layers
    ]
    hidden = keras.layers.Dense(3, kernel_regularizer=CONSTANT)(
        flat[0] if flat else keras.layers.Rescaling(0.01)(inputs)
    )
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    optimizer = tsps.DistributedOptimizer(
        keras.optimizers.SGD(0.01, global_clipnorm=case.get("clip")),
        sparse_optimizer="sgd",
        **({"schedule": case["schedule"]()} if "schedule" in case else {}),
    )
    model.compile(optimizer, "mse", steps_per_execution=case.get("steps_per_execution", 1))
    if "loop" in case:
        loop(model, dataset, case["loop"], tsps.DistributedGradientTape if "tape" in case else None)
    else:
        # Validation looks rows of sharded tables up on all ranks together.
        model.fit(dataset, epochs=EPOCHS, verbose=0, validation_data=dataset if "placement" in case else None)
    optimizer.drain()
    return {
        "updates": np.array(int(optimizer.iterations)),
        **{f"rows{i}": np.asarray(layer(tf.range(IDS))) for i, layer in enumerate(layers)},
        **{f"weights{i}": values for i, values in enumerate(model.layers[-1].get_weights())},
        **{f"constant{i}": values for i, values in enumerate(model.layers[-2].get_weights())},
    }


def loop(model: Any, dataset: tf.data.Dataset, kind: str, wrapper: Callable[[tf.GradientTape], Any] | None) -> None:
    """Trains by a function that takes the data from the iterator itself. `kind`: in which order."""

    def step(ids: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids) - targets) ** 2) + tf.add_n(model.losses)
        gradients = (wrapper(tape) if wrapper else tape).gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    take = tf.function(lambda data: next(data)) if kind == "nested" else next

    @tf.function
    def train_step(iterator: Any) -> None:
        if kind == "noise":
            step(tf.ones([BATCH, 2], tf.int64), tf.ones([BATCH, 1]))
        step(*take(iterator))
        if kind == "unrolled":
            step(*take(iterator))

    @tf.function
    def train_ahead(iterator: Any, ids: tf.Tensor, targets: tf.Tensor) -> Any:
        step(ids, targets)
        return next(iterator)

    for _ in range(EPOCHS):
        iterator = iter(dataset)
        try:
            batch = next(iterator) if kind == "ahead" else None
            while True:
                if kind == "ahead":
                    batch = train_ahead(iterator, *batch)
                else:
                    train_step(iterator)
        except tf.errors.OutOfRangeError:
            pass


def main() -> None:
    """Runs the cases."""
    this_rank.init()
    names, folder = sys.argv[1].split(","), Path(sys.argv[2])
    for name in names:
        print(f"rank {this_rank.rank()}: {name}", flush=True)  # shown when the test times out
        unknown = train(CASES[name], late_dataset())
        known = train(CASES[name], tf.data.Dataset.from_tensor_slices(batches()))
        assert not _ops.in_flight(), _ops.in_flight()
        np.savez(folder / f"{name}-{this_rank.rank()}.npz", **unknown)
        np.savez(folder / f"{name}-known-{this_rank.rank()}.npz", **known)


if __name__ == "__main__":
    main()
