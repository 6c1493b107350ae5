"""One of two ranks that train a model and publish it. Argument: the folder for versions."""

from __future__ import annotations

import sys
from pathlib import Path

import event_records
import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps

keras = tf.keras


def figures_are_of_both_ranks(folder: Path) -> None:
    """Rank 0 alone has written them, and they are sums over both ranks."""
    job, node = (event_records.read(folder / run) for run in ("", "node-0"))
    assert len(list(folder.glob("events.*"))) == 1
    assert list(job["job/steps_per_second"]) == [10, 20, 30, 40]
    # The figures of the other rank are some milliseconds older or newer.
    samples, steps = (sum(job[f"job/{name}_per_second"].values()) for name in ("samples", "steps"))
    assert 60 < samples / steps < 140, "100 samples per step"
    assert 0 < max(node["waits/ranks"].values()) <= 1
    assert max(node["per_second/bytes_shared"].values()) > 0


def main() -> None:
    """Publishes while both ranks train, and compares the last version with the table."""
    this_rank.init()
    ranks, folder = tsps.collectives.current(), Path(sys.argv[1])
    layer = tsps.Embedding(None, 8, name="words")
    model = keras.Sequential([keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5)), "mse")
    ids = np.random.default_rng(ranks.rank).integers(0, 3000, (2000, 2))
    publish = tsps.callbacks.Export(folder / "serve", every_steps=10, keep=3)
    watch = tsps.callbacks.TableMetrics(folder / "metrics", every_steps=10)
    callbacks = [tsps.callbacks.BroadcastVariables(), publish, watch]
    model.fit(ids, np.ones((2000, 1), np.float32), batch_size=50, verbose=0, callbacks=callbacks)
    ranks.barrier("test.published")
    if ranks.rank == 0:
        figures_are_of_both_ranks(folder / "metrics")
    reader = layer.bindings[0].reader()
    keys = np.sort(reader.keys())
    served = tsps.ServingTable.open(folder / "serve", verify=True)
    np.testing.assert_array_equal(served.lookup(keys), reader.lookup(keys))
    assert served.step == reader.step == 40
    # All ranks may call it, or rank 0 alone.
    tsps.export(model, folder / "all")
    if ranks.rank == 0:
        tsps.export(model, folder / "one", base=folder / "serve/4")
    ranks.barrier("test.exported")
    for name in ("all", "one"):
        np.testing.assert_array_equal(tsps.ServingTable.open(folder / name).lookup(keys), reader.lookup(keys))
    assert sorted(path.name for path in (folder / "serve").iterdir()) == ["2", "3", "4"]
    ranks.barrier("test.read")
    print("rank is done")


main()
