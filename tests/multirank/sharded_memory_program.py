"""One rank of the test of what sharded tables take of each node's memory, beside a replicated table of the same rows.

Arguments: none; the folder for results.
"""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps.job import job as jobs

keras = tf.keras
ROWS, DIM, BATCH = 120_000, 32, 4_000  # keys of a batch; all are other ones
STEPS = ROWS // BATCH
ROW = 4 * DIM + 4 * DIM + 8  # bytes on a wire: a row, and its gradient with the key


def allocated(folder: str) -> int:
    """Bytes of the files of a folder and those below it."""
    files = (os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)
    return sum(os.stat(one).st_blocks * 512 for one in files)


def main() -> None:
    """Trains every key once, and looks what there is then."""
    ranks = this_rank.init()
    layers = {
        name: tsps.Embedding(None, DIM, table=tsps.TableConfig(name, DIM, placement=placement))
        for name, placement in (("replicated", "replicated"), ("sharded", tsps.Sharded()))
    }
    inputs = keras.Input((1,), dtype="int64")
    rows = keras.layers.Concatenate()([keras.layers.Flatten()(layer(inputs)) for layer in layers.values()])
    model = keras.Model(inputs, keras.layers.Dense(1)(rows))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    keys = np.arange(ROWS).reshape(STEPS, BATCH, 1) * 7919
    own = BATCH // ranks.size

    def batches() -> tf.data.Dataset:
        part = keys[:, this_rank.rank() * own :][:, :own].reshape(-1, 1)
        return tf.data.Dataset.from_tensor_slices((part, np.ones((len(part), 1), np.float32))).batch(own)

    model.fit(tsps.lookahead(batches(), model, batches=2), verbose=0)
    job = jobs.current()
    taken = {name: allocated(layer.bindings[0].path) for name, layer in layers.items()}
    exchange = allocated(job.group.exchange_path)
    nodes = layers["sharded"].bindings[0].nodes
    found = model.optimizer.statistics()
    everyone = ranks.allgather_object(found["sharded_rows"], "test.rows")
    print(f"node {job.identity.node}: {taken}, {exchange} of exchanges, {found['sharded_rows']} rows", flush=True)
    assert all(abs(one - ROWS / nodes) <= 0.05 * ROWS / nodes for one in everyone), everyone
    # A segment of each plane is allocated ahead of the rows.
    assert taken["sharded"] <= 1.05 * taken["replicated"] / nodes + (2 << 20), taken
    # What travels of a step, of all ranks of a node, to and fro and reduced; not what has travelled before.
    assert exchange <= 3 * BATCH * ROW + (1 << 20), exchange
    before = exchange
    model.fit(tsps.lookahead(batches(), model, batches=2), verbose=0)
    assert allocated(job.group.exchange_path) <= before + (1 << 20), "exchanges grow"
    ranks.barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
