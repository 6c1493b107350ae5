"""One rank of the tests that a job which is killed and started again by the same command equals an uninterrupted one.

Arguments: a JSON object, see `Options`; the folder for results, which is not used: the options name the folder.
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
BATCHES = (7, 5, 6)  # the number of batches of each epoch


@dataclasses.dataclass
class Options:
    """The options of a run.

    Attributes:
      checkpoints: The directory of checkpoints.
      results: The folder to which the contents of tables and variables are written after training; "": none.
      how: "fit" or "loop".
      epochs: The number of epochs.
      every: The number of steps between checkpoints.
      background: Whether checkpoints are written while training continues. Then timing decides which checkpoint exists
        when a process dies.
      per_node: Whether each machine has a directory, "<checkpoints>-<node>".
      staging: The staging folder, if the checkpoints are behind a URL.
      kill_rank: The rank that kills itself; -1: none.
      kill_at: The number of updates after which it kills itself.
      kill_point: The point of a save at which it kills itself, from that number of updates on.
      kill_restore: The point of a restore at which it kills itself.
      kill_waits: Whether it announces the kill, and waits for another end: that of the launcher.
      preemption: Whether the job saves and ends after SIGTERM.
      sends: Who gets SIGTERM instead of the kill: "rank", "launcher", or "all".
      placement: The placement of the tables: "replicated" or "sharded".
      tiered: The folder for the rows on disk of one table; "": all rows are in memory.
      memory: The memory of that table, if it has rows on disk.
      cached: Whether one table has some of its rows on a device.
      schedule: The schedule of dense gradients, as an expression.
      policies: Whether the tables admit keys and evict rows.
      max_rows: The rows of a table beyond which steps evict some; None: rows leave if they are unused. In a tie, two
        jobs evict different rows, because each draws its hashes.
      unknown: Whether datasets do not know their number of batches.
      dropout: Whether the model drops some values, in Keras 3.
      skip: "tables" or "variables": what the control omits from a restore; "check": the comparison of steps, too.
      after: "load": only restore, and write the results; "save": save, too.
    """

    checkpoints: str
    results: str = ""
    how: str = "fit"
    epochs: int = 3
    every: int = 4
    background: bool = False
    per_node: bool = False
    staging: str | None = None
    kill_rank: int = -1
    kill_at: int = -1
    kill_point: str = ""
    kill_restore: str = ""
    kill_waits: bool = False
    preemption: bool = False
    sends: str = ""
    placement: str = "replicated"
    tiered: str = ""
    memory: int | str = "5.5MiB"
    cached: bool = False
    schedule: str = "Synchronous()"
    policies: bool = True
    max_rows: int | None = 280
    unknown: bool = False
    dropout: bool = True
    skip: str = ""
    after: str = ""


def make_model(options: Options) -> Any:
    """Returns a compiled model with two tables, statistics of normalisation, and dropout."""
    placement: Any = Sharded() if options.placement == "sharded" else "replicated"
    storage: Any = tsps.Tiered(options.tiered, memory=options.memory) if options.tiered else "memory"
    # A batch has at most 48 keys. "lru" gives the same bits as no cache.
    cache = tsps.DeviceCache(rows=90, policy="lru") if options.cached else None
    # Delayed steps do not evict the same rows after a restart.
    evicts = options.policies and not options.schedule.startswith("Delayed")
    most = options.max_rows
    eviction = tsps.Eviction(4, max_rows=most, policy="lfu", half_life=3, keep=[0, 7]) if evicts else None
    users = tsps.TableConfig(
        "users",
        4,
        initializer="uniform",
        seed=3,
        placement=placement,
        storage=storage,
        cache=cache,
        eviction=tsps.Eviction(6, max_rows=330) if options.tiered and evicts else None,
    )
    # Two jobs draw other seeds of hashes. With so large a sketch, one takes one of the 400 keys for another with a
    # probability of 3e-10. Its memory grows with the keys that it counts.
    admission = tsps.Admission(2, 2**40, half_life=6) if evicts else None
    items = tsps.TableConfig(
        "items", 6, key_limit=ITEMS, dtype="bfloat16", placement=placement, eviction=eviction, admission=admission
    )
    inputs = keras.Input((WIDTH,), dtype="int64")
    parts = [
        keras.layers.Flatten()(tsps.Embedding(None, 4, table=users, name="users")(inputs)),
        keras.layers.Flatten()(tsps.Embedding(ITEMS, 6, table=items, name="items")(inputs)),
    ]
    hidden = keras.layers.BatchNormalization()(keras.layers.Concatenate()(parts))
    hidden = keras.layers.Dense(5, activation="tanh")(hidden)
    if options.dropout and _keras.IS_KERAS_3:  # in Keras 2, the random states of dropout are no variables
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
    """Ends this process after a number of updates."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self._has_sent = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        updates = int(self.model.optimizer.iterations)
        if not self._options.sends:
            die(self._options, updates)
        elif updates >= self._options.kill_at and not self._has_sent:
            self._has_sent = True
            send(self._options)


def send(options: Options) -> None:
    """Sends SIGTERM to this rank, to the launcher, or to both, as the options say."""
    is_chosen = this_rank.rank() == options.kill_rank
    if is_chosen and options.sends in ("launcher", "all"):
        os.kill(os.getppid(), signal.SIGTERM)
    if (is_chosen and options.sends == "rank") or options.sends == "all":
        signal.raise_signal(signal.SIGTERM)


def die(options: Options, updates: int) -> None:
    """Ends this process if it is to die after this number of updates. If it is to die in a save, arms that point."""
    if this_rank.rank() != options.kill_rank or updates < options.kill_at:
        return
    if not options.kill_point:
        end(options)
    die_at(options.kill_point, options)


def die_at(chosen: str, options: Options) -> None:
    """Ends this process when it reaches a point."""
    fault_points.set_action(lambda point: end(options) if point == chosen else None)


def end(options: Options) -> None:
    """Ends this process, or waits until it is killed."""
    if options.kill_waits:
        print("waits to be killed", flush=True)
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def controls(options: Options) -> Iterator[None]:
    """Omits from restores what the options say."""
    if options.skip:
        nothing: Any = lambda *_, **__: None  # noqa: E731
        tables.Stored.restore = nothing  # type: ignore[method-assign]
        tables.Stored.set_step = nothing  # type: ignore[method-assign]
        if options.skip == "check":
            Restorer._refuse_differing_steps = nothing  # type: ignore[method-assign]
            Restorer._refuse_tables_of_other_steps = nothing  # type: ignore[method-assign]
    yield


def where(options: Options) -> str:
    """Returns the directory of checkpoints."""
    return f"{options.checkpoints}-{job.current().node}" if options.per_node else options.checkpoints


def how(options: Options) -> dict[str, Any]:
    """Returns the options of the checkpoints."""
    return {
        "keep": 2,
        "background": options.background,
        "per_node": options.per_node,
        "staging": options.staging,
    }


def preemption(options: Options) -> dict[str, Any]:
    """Returns the options of the callback alone."""
    return {"on_preemption": True} if options.preemption else {}


def fit(options: Options, model: Any) -> None:
    """Trains by `fit`."""
    checkpoint = tsps.callbacks.Checkpoint(
        where(options), every_steps=options.every, **how(options), **preemption(options)
    )
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
            updates = int(optimizer.iterations)
            die(options, updates)
            if updates % options.every == 0:
                checkpointer.save()
    checkpointer.save()
    checkpointer.wait()


def write_results(options: Options, model: Any) -> None:
    """Writes the contents of the tables, in the order of the keys, and this rank's variables."""
    ranks = tsps.collectives.current()
    contents: dict[str, Any] = {}
    for binding in tables.of(model):
        keys, rows, slots, _ = binding.reader().scan(slots=True).read()
        order = np.argsort(keys)
        arrays_of_rank = [keys[order], rows[order], *(slot[order] for slot in slots)]
        if isinstance(binding.config.storage, tsps.Tiered) and ranks.local_rank == 0:
            print(f"{binding.config.name} has {binding.reader().stats()['rows_on_disk']} rows on disk", flush=True)
        parts = ranks.allgather_object((binding.node, ranks.local_rank == 0, arrays_of_rank), "test.tables")
        leaders = [arrays for _, leads, arrays in parts if leads]
        if binding.placement == "replicated":  # all nodes have the same
            for arrays in leaders[1:]:
                for a, b in zip(leaders[0], arrays, strict=True):
                    np.testing.assert_array_equal(a, b)
            leaders = leaders[:1]
        whole = [np.concatenate(arrays) for arrays in zip(*leaders, strict=True)]
        order = np.argsort(whole[0])
        for number, array in enumerate(whole):
            contents[f"{binding.config.name}.{number}"] = array[order]
    contents["step of the tables"] = np.asarray(tables.committed_step())
    for entry in variables.collect(model, model.optimizer, {}):
        if entry.kind != "metric":
            number = sum(name.startswith("variable") for name in contents)
            contents[f"variable.{number:03d}.{entry.kind}"] = entry.variable.numpy()
    Path(options.results).mkdir(parents=True, exist_ok=True)
    np.savez(Path(options.results) / f"rank{ranks.rank}.npz", **contents)
    ranks.barrier("test.results")


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    tsps.init()  # a single rank is started without a launcher
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
