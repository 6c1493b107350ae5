"""One rank of the tests that a job which is killed and started again by the same command is an uninterrupted one.

Arguments: a JSON object, see `Options`; the folder for results, which is not used: those go where the options say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import fault_points, tables, variables
from tf_sparse_ps.checkpoints.restorer import Restorer
from tf_sparse_ps.config.placement import Sharded

keras = _keras.keras
WIDTH, ITEMS, BATCH = 3, 400, 16
BATCHES = (7, 5, 6)  # of each epoch


@dataclasses.dataclass
class Options:
    """What a run does.

    Attributes:
      checkpoints: Their directory.
      results: Where the content of tables and variables is written when training has ended; "": nowhere.
      how: "fit" or "loop".
      epochs: To train.
      every: Steps between checkpoints.
      background: Checkpoints are written beside training: which one is there when a process dies depends on time.
      per_node: Each machine has a directory, "<checkpoints>-<node>".
      kill_rank: That kills itself; -1: none does.
      kill_at: Updates after which it does.
      kill_point: Of a save at which it does, from that number of updates on.
      kill_restore: Point of a restore at which it does.
      kill_waits: It says that it is about to, and waits to be ended otherwise: with the launcher.
      placement: Of the tables: "replicated" or "sharded".
      tiered: Folder for the rows on disk of one table; "": in memory.
      memory: Of that table, where it is on disk.
      cached: One table has some of its rows on a device.
      schedule: Of dense gradients, as it is written in a program.
      unknown: Datasets do not tell how many batches they have.
      dropout: The model drops some values, under Keras 3.
      skip: "tables" or "variables": what the control leaves out of a restore; "check": the comparison of steps, too.
      after: "load": only restores, and writes the results; "save": saves, too.
    """

    checkpoints: str
    results: str = ""
    how: str = "fit"
    epochs: int = 3
    every: int = 4
    background: bool = False
    per_node: bool = False
    kill_rank: int = -1
    kill_at: int = -1
    kill_point: str = ""
    kill_restore: str = ""
    kill_waits: bool = False
    placement: str = "replicated"
    tiered: str = ""
    memory: int | str = "16MiB"
    cached: bool = False
    schedule: str = "Synchronous()"
    unknown: bool = False
    dropout: bool = True
    skip: str = ""
    after: str = ""


def make_model(options: Options) -> Any:
    """A model with two tables, statistics of normalisation and dropout, compiled."""
    placement: Any = Sharded() if options.placement == "sharded" else "replicated"
    storage: Any = tsps.Tiered(options.tiered, memory=options.memory) if options.tiered else "memory"
    # A batch has at most 48 keys, and "lru" gives the bits that there would be without.
    cache = tsps.DeviceCache(rows=90, policy="lru") if options.cached else None
    users = tsps.TableConfig(
        "users", 4, initializer="uniform", seed=3, placement=placement, storage=storage, cache=cache
    )
    items = tsps.TableConfig("items", 6, key_limit=ITEMS, dtype="bfloat16", placement=placement)
    inputs = keras.Input((WIDTH,), dtype="int64")
    parts = [
        keras.layers.Flatten()(tsps.Embedding(None, 4, table=users, name="users")(inputs)),
        keras.layers.Flatten()(tsps.Embedding(ITEMS, 6, table=items, name="items")(inputs)),
    ]
    hidden = keras.layers.BatchNormalization()(keras.layers.Concatenate()(parts))
    hidden = keras.layers.Dense(5, activation="tanh")(hidden)
    if options.dropout and _keras.IS_KERAS_3:  # Keras 2 draws what it drops from states that are no variables
        hidden = keras.layers.Dropout(0.2)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    schedule = eval(f"tsps.schedules.{options.schedule}")
    optimizer = tsps.DistributedOptimizer(keras.optimizers.Adam(0.01), schedule=schedule)
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    return model


def batches_of(options: Options) -> Any:
    """Returns this rank's batches of an epoch."""
    import tensorflow as tf

    def make(epoch: int) -> Any:
        random = np.random.default_rng([this_rank.rank(), epoch % len(BATCHES)])
        n = BATCHES[epoch % len(BATCHES)] * BATCH
        x = random.integers(0, ITEMS, (n, WIDTH))
        y = random.normal(size=(n, 1)).astype(np.float32)
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(n, seed=epoch).batch(BATCH)
        return data.filter(lambda *_: True) if options.unknown else data

    return make


class Kill(keras.callbacks.Callback):
    """Ends this process after so many updates."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        die(self._options, int(self.model.optimizer.iterations))


def die(options: Options, made: int) -> None:
    """Ends this process if it is to die after so many updates; from then on, if in a save."""
    if this_rank.rank() != options.kill_rank or made < options.kill_at:
        return
    if not options.kill_point:
        end(options)
    die_at(options.kill_point, options)


def die_at(chosen: str, options: Options) -> None:
    """Ends this process when it comes to a point."""
    fault_points.set_action(lambda point: end(options) if point == chosen else None)


def end(options: Options) -> None:
    """Ends this process, or waits until somebody does."""
    if options.kill_waits:
        print("waits to be killed", flush=True)
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def controls(options: Options) -> Iterator[None]:
    """Leaves out what the options say."""
    if options.skip:
        nothing: Any = lambda *_, **__: None  # noqa: E731
        tables.Stored.restore = nothing  # type: ignore[method-assign]
        tables.Stored.set_step = nothing  # type: ignore[method-assign]
        if options.skip == "check":
            Restorer._refuse_differing_steps = nothing  # type: ignore[method-assign]
            Restorer._refuse_tables_of_other_steps = nothing  # type: ignore[method-assign]
    yield


def where(options: Options) -> str:
    """The directory of checkpoints."""
    return f"{options.checkpoints}-{job.current().node}" if options.per_node else options.checkpoints


def how(options: Options) -> dict[str, Any]:
    """How they are saved."""
    return {"keep": 2, "background": options.background, "per_node": options.per_node}


def fit(options: Options, model: Any) -> None:
    """Trains by `fit`."""
    checkpoint = tsps.callbacks.Checkpoint(where(options), every_steps=options.every, **how(options))
    data = checkpoint.dataset(batches_of(options))
    if options.placement == "sharded":
        data = tsps.lookahead(data, model, batches=2)

    def note(epoch: int, logs: Any) -> None:
        print(f"epoch {epoch}: {json.dumps({k: float(v) for k, v in sorted(logs.items())})}", flush=True)

    noted = keras.callbacks.LambdaCallback(on_epoch_end=note)
    callbacks = [checkpoint, Kill(options), noted]
    model.fit(data, epochs=options.epochs, verbose=0, callbacks=callbacks)


def loop(options: Options, model: Any) -> None:
    """Trains in a custom loop."""
    import tensorflow as tf

    optimizer = model.optimizer
    checkpointer = tsps.Checkpointer(where(options), model, optimizer, **how(options))
    if checkpointer.restore() is None:
        checkpointer.save()
        checkpointer.wait()

    @tf.function
    def train(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    data = checkpointer.dataset(batches_of(options))
    for _ in checkpointer.epochs(options.epochs):
        for x, y in data:
            train(x, y)
            made = int(optimizer.iterations)
            die(options, made)
            if made % options.every == 0:
                checkpointer.save()
    checkpointer.save()
    checkpointer.wait()


def write_results(options: Options, model: Any) -> None:
    """What is in the tables, in the order of the keys, and in this rank's variables."""
    ranks = tsps.collectives.current()
    found: dict[str, Any] = {}
    for binding in tables.of(model):
        keys, rows, slots, _ = binding.reader().scan(slots=True).read()
        order = np.argsort(keys)
        own = [keys[order], rows[order], *(one[order] for one in slots)]
        if isinstance(binding.config.storage, tsps.Tiered) and ranks.local_rank == 0:
            print(f"{binding.config.name} has {binding.reader().stats()['rows_on_disk']} rows on disk", flush=True)
        parts = ranks.allgather_object((binding.node, ranks.local_rank == 0, own), "test.tables")
        leaders = [arrays for _, leads, arrays in parts if leads]
        if binding.placement == "replicated":  # all nodes have the same
            for arrays in leaders[1:]:
                for a, b in zip(leaders[0], arrays, strict=True):
                    np.testing.assert_array_equal(a, b)
            leaders = leaders[:1]
        whole = [np.concatenate(arrays) for arrays in zip(*leaders, strict=True)]
        order = np.argsort(whole[0])
        for number, array in enumerate(whole):
            found[f"{binding.config.name}.{number}"] = array[order]
    found["step of the tables"] = np.asarray(tables.committed_step())
    for entry in variables.collect(model, model.optimizer, {}):
        if entry.kind != "metric":
            number = sum(name.startswith("variable") for name in found)
            found[f"variable.{number:03d}.{entry.kind}"] = entry.variable.numpy()
    Path(options.results).mkdir(parents=True, exist_ok=True)
    np.savez(Path(options.results) / f"rank{ranks.rank}.npz", **found)
    ranks.barrier("test.results")


def main() -> None:
    """See above."""
    options = Options(**json.loads(sys.argv[1]))
    tsps.init()  # where there is but one rank it is no launcher's
    keras.utils.set_random_seed(7)
    model = make_model(options)
    if options.kill_restore and this_rank.rank() == options.kill_rank:
        die_at(options.kill_restore, options)
    with controls(options):
        if options.after:
            checkpointer = tsps.Checkpointer(options.checkpoints, model, model.optimizer)
            checkpointer.restore()
            if options.after == "save":
                checkpointer.save()
                checkpointer.wait()
        else:
            (fit if options.how == "fit" else loop)(options, model)
    if options.results:
        write_results(options, model)
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
