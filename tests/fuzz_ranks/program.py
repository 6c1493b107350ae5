"""One rank of a draw. Arguments: the plan; the folder for results.

It prints "fuzz: " and a description when its event begins and after each step. At its end, it writes
`state-<rank>.json`: digests of everything that must be equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import tf_sparse_ps as tsps  # noqa: E402
from tests.fuzz_ranks import controls  # noqa: E402
from tests.fuzz_ranks.plan import EPOCHS, STEPS, Plan  # noqa: E402

keras = tf.keras
KEYS, DIM, WIDTH, BATCH = 40, 4, 3, 4
SLEEP_S = 3.0  # less than TFSPS_TIMEOUT_S


class FuzzError(Exception):
    """The error that a rank of a draw raises."""


class Program:
    """The program of one rank."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder, self.rank = plan, folder, this_rank.rank()
        self.is_it = plan.who == self.rank
        self.made = 0  # number of steps
        self.happened = False
        # Errors since the last step. Keras reports another error if it tries again to build a model.
        self.caught = ""

    # --- the job ---

    def run(self) -> None:
        self.at("build")
        keras.utils.set_random_seed(7)
        inputs = keras.Input([WIDTH], dtype="int64")
        placement = tsps.Sharded() if self.plan.sharded else "replicated"
        dim = self.option("dim", DIM, DIM + 1)
        layers = [tsps.Embedding(KEYS, dim, placement=placement)]
        if self.is_it and self.plan.event == "layer":
            self.say()
            layers.append(tsps.Embedding(KEYS, dim))
        parts = [keras.layers.Flatten()(layer(inputs)) for layer in layers]
        joined = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
        self.model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, "tanh")(joined)))
        self.layer = layers[0]
        self.model.compile(self.optimizer(), "mse", metrics=["mae"])
        self.at("begin")
        self.callbacks = self.make_callbacks()
        self.fit(0)
        self.at("between")
        self.fit(1)
        tsps.collectives.current().barrier("fuzz.end")
        controls.plant(self.plan.fault, "end", self.rank, self.model)
        (self.folder / f"state-{self.rank}.json").write_text(json.dumps(self.state()))

    def optimizer(self) -> Any:
        rate, clip = self.option("learning_rate", 0.05, 0.06), self.option("clipnorm", None, 1.0)
        clip = {} if clip is None or self.plan.sharded else {"clipnorm": clip}
        if self.plan.rule == "adam":
            inner = keras.optimizers.Adam(rate, beta_1=self.option("momentum", 0.9, 0.8), **clip)
        else:
            inner = keras.optimizers.SGD(rate, momentum=self.option("momentum", 0.5, 0.4), **clip)
        return tsps.DistributedOptimizer(
            inner,
            sparse_reduction=self.option("sparse_reduction", "frequency", "sum"),
            topology="hierarchical" if self.plan.sharded else self.option("topology", "hierarchical", "flat"),
        )

    def make_callbacks(self) -> list[Any]:
        checkpoints = self.folder / "checkpoints"
        self.checkpoint = None
        callbacks: list[Any] = []
        for name in self.plan.callbacks:
            if self.is_it and self.plan.event == "skip callback" and self.plan.detail == name:
                self.say()
            elif name == "Checkpoint":
                every = self.option("every_steps", 2, 3)
                self.checkpoint = tsps.callbacks.Checkpoint(checkpoints, every_steps=every)
                callbacks.append(self.checkpoint)
            elif name == "BroadcastVariables":
                callbacks.append(tsps.callbacks.BroadcastVariables(root=self.option("root", 0, 1)))
            elif name == "MetricAverage":
                callbacks.append(tsps.callbacks.MetricAverage())
            elif name == "ReduceLROnPlateau":
                callbacks.append(keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=10.0))
            else:
                callbacks.append(keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9))
        callbacks.sort(key=lambda callback: callback is self.checkpoint)  # the checkpoint is the last one
        counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: self.step_made())
        return [*callbacks, counter] if self.checkpoint is None else [*callbacks[:-1], counter, self.checkpoint]

    def fit(self, number: int) -> None:
        epochs = self.option("epochs", EPOCHS, EPOCHS + 1)
        batches = self.option("batches", STEPS, STEPS - 1)

        def make(epoch: int) -> tf.data.Dataset:
            chance = np.random.default_rng([self.rank, number, epoch])
            ids = chance.integers(0, KEYS, (batches * BATCH, WIDTH))
            return tf.data.Dataset.from_tensor_slices((ids, chance.normal(size=(len(ids), 1)))).batch(BATCH)

        validation = None
        if self.is_it and self.plan.event == "validate":
            self.say()
            validation = make(0)
        # With the callback Checkpoint, epochs are counted from the first fit on.
        data = make(0) if self.checkpoint is None else self.checkpoint.dataset(make)
        epochs = epochs if self.checkpoint is None else epochs * (number + 1)
        try:
            self.model.fit(data, epochs=epochs, validation_data=validation, callbacks=self.callbacks, verbose=0)
        except (Exception, KeyboardInterrupt) as error:
            if not self.plan.catches:
                raise
            self.caught += f"{type(error).__name__}: {error}\n"
            print(f"fuzz: rank {self.rank} catches {type(error).__name__}: {error}", flush=True)

    # --- the event ---

    def option(self, name: str, usual: Any, other: Any) -> Any:
        if self.is_it and self.plan.event == "option" and self.plan.detail == name:
            self.say()
            return other
        return usual

    def say(self) -> None:
        if not self.happened:
            self.happened = True
            print(f"fuzz: event on rank {self.rank}", flush=True)

    def step_made(self) -> None:
        self.made += 1
        self.caught = ""
        print(f"fuzz: rank {self.rank} has made step {self.made}", flush=True)
        if self.made == self.plan.step:
            self.at("step")

    def at(self, moment: str) -> None:
        if not self.is_it or self.plan.moment != moment:
            return
        event = self.plan.event
        self.say()
        if event == "raise":
            raise FuzzError(f"rank {self.rank} raises at {moment}")
        if event == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        elif event == "import":
            assert tsps.callbacks
            assert tsps.Checkpointer
        elif event == "write":
            self.layer.set_weights([np.full((KEYS, DIM), 0.25 * (self.rank + 1), np.float32)])
        elif event == "rate":
            self.model.optimizer.learning_rate = 0.01
        elif event == "save":
            self.model.save_weights(str(self.folder / f"saved-{self.rank}.weights.h5"))
        elif event == "evaluate":
            ids = np.arange(4 * WIDTH).reshape(4, WIDTH)
            self.model.evaluate(ids, np.ones((4, 1)), verbose=0)
        elif event == "predict":
            self.model.predict(np.arange(4 * WIDTH).reshape(4, WIDTH), verbose=0)
        elif event == "sleep":
            time.sleep(SLEEP_S)

    # --- the end ---

    def state(self) -> dict[str, Any]:
        """Returns digests of the state that all ranks share, with those of this node's shards, and recent errors."""
        digests: dict[str, Any] = {"caught": self.caught, "iterations": int(self.model.optimizer.iterations)}
        node = tsps.job.current().node if self.plan.sharded else 0
        reader = self.layer.bindings[0].reader()
        keys = np.sort(reader.keys())
        digests[f"keys of node {node}"] = _digest(keys)
        digests[f"rows of node {node}"] = _digest(reader.lookup(keys))
        dense = [
            variable for variable in self.model.trainable_variables if getattr(variable, "tsps_binding", None) is None
        ]
        for i, variable in enumerate(dense):
            digests[f"dense weight {i}"] = _digest(np.asarray(variable))
        for i, variable in enumerate(self.model.optimizer.variables):
            digests[f"variable {i} of the optimizer"] = _digest(np.asarray(variable))
        return digests


def _digest(array: Any) -> str:
    array = np.ascontiguousarray(array)
    return f"{array.shape} {hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()}"


def main() -> None:
    plan = Plan.of(sys.argv[1])
    controls.plant(plan.fault, "begin", -1, None)
    this_rank.init()
    try:
        Program(plan, Path(sys.argv[2])).run()
    except BaseException as error:
        sys.last_value = error  # as the interpreter does; a forked program does not
        raise


if __name__ == "__main__":
    main()
