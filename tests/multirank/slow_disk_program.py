"""One rank of a job that saves to a slow disk. It reports what it does meanwhile, and at its end.

Arguments: "loop"; "fit"; "exit": a loop that ends without waiting; "wait": one save, and no step meanwhile; or
"restore". Then the directory of checkpoints; the control group of rank 0, which makes the disk slow, or "-": a save, or
a restore, sleeps for some seconds at each file; the folder for results, which is not used.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import fault_points, stored_checkpoint, tables

keras = _keras.keras
ROWS, DIM, BATCH = 60_000, 16, 64
STANDS_STILL_S = 5.0  # at each file
FILES = 3  # that rank 0 restores: the variables, and one of each table
LEAST, MOST = 20, 3_000  # numbers of steps


def make_model() -> Any:
    """Returns a compiled model with a big table and a small one, so that rank 0 restores `FILES` files."""
    inputs = keras.Input((2,), dtype="int64")
    configs = [tsps.TableConfig("ids", DIM, seed=1), tsps.TableConfig("small", 1, seed=2)]
    rows = [keras.layers.Flatten()(tsps.Embedding(None, config.dim, table=config)(inputs)) for config in configs]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse", jit_compile=False)
    return model


def batches(n: int) -> Any:
    """Returns this rank's batches."""
    import tensorflow as tf

    random = np.random.default_rng(this_rank.rank())
    x = random.integers(0, ROWS, (n * BATCH, 2))
    return tf.data.Dataset.from_tensor_slices((x, np.ones((n * BATCH, 1), np.float32))).batch(BATCH)


def make_slow(group: str) -> None:
    """Makes this process's disk slow."""
    if this_rank.rank() != 0:
        return
    if group == "-":
        fault_points.set_action(lambda point: time.sleep(STANDS_STILL_S) if point == "file_written" else None)
        crc32 = stored_checkpoint.file_crc32

        def slow(path: Path, *options: Any) -> str:
            time.sleep(STANDS_STILL_S)
            return crc32(path, *options)

        stored_checkpoint.file_crc32 = slow
    else:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def loop(model: Any, folder: str, *, waits: bool) -> None:
    """Trains during a save, and then saves again."""
    checkpointer = tsps.Checkpointer(folder, model, model.optimizer, keep=2, incremental=False)
    data = list(batches(40))
    alone, beside = [], []
    for x, y in data:
        began = time.perf_counter()
        model.train_on_batch(x, y)
        alone.append(time.perf_counter() - began)
    began = time.perf_counter()
    checkpointer.save()
    returned = time.perf_counter() - began
    # All ranks make the same number of steps, but only rank 0 knows whether the save is still running.
    while len(beside) < MOST:
        before = time.perf_counter()
        model.train_on_batch(*data[len(beside) % len(data)])
        beside.append(time.perf_counter() - before)
        if len(beside) % LEAST == 0:
            still_saving = tsps.collectives.current().broadcast_object(checkpointer.is_saving, 0, "test.saving")
            if not still_saving:
                break
    if this_rank.rank() == 0:
        middle, most = statistics.median(beside), max(beside)
        print(
            f"{len(beside)} steps beside a save of {time.perf_counter() - began:.1f} s; save() took {returned:.3f} s; "
            f"alone {1e3 * statistics.median(alone):.1f} ms, beside {1e3 * middle:.1f} ms, at most {1e3 * most:.1f} ms",
            flush=True,
        )
        assert len(beside) > LEAST
    began = time.perf_counter()
    checkpointer.save()
    if waits:
        checkpointer.wait()
        print(f"waited {time.perf_counter() - began:.1f} s for the next one", flush=True)


def fit(model: Any, folder: str) -> None:
    """Trains by `fit`, which ends with a save."""
    checkpoint = tsps.callbacks.Checkpoint(folder, every_steps=25, keep=2, incremental=False)
    began = time.perf_counter()
    model.fit(checkpoint.dataset(lambda _: batches(30)), epochs=1, verbose=0, callbacks=[checkpoint])
    print(f"fit took {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    how, folder, group = sys.argv[1:4]
    tsps.init()
    keras.utils.set_random_seed(7)
    model = make_model()
    model(np.zeros((1, 2), np.int64))
    keys = np.arange(ROWS)
    big, _ = tables.of(model)
    big.assign(keys, np.full((ROWS, DIM), 0.5, np.float32))
    make_slow(group)
    if how == "fit":
        fit(model, folder)
    elif how == "restore":
        assert tsps.Checkpointer(folder, model, model.optimizer).restore() is not None
        model.fit(batches(1), verbose=0)
    elif how == "wait":
        checkpointer = tsps.Checkpointer(folder, model, model.optimizer)
        model.fit(batches(1), verbose=0)  # from now on, the ranks watch each other
        checkpointer.save()
        checkpointer.wait()
    else:
        loop(model, folder, waits=how == "loop")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
