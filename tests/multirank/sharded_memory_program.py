"""One rank of the test of the memory that sharded tables take on each node, compared with a replicated table.

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
ROWS, DIM, BATCH = 120_000, 32, 4_000  # BATCH: keys of a batch; no key is in two batches
STEPS = ROWS // BATCH
ROW = 4 * DIM + 4 * DIM + 8  # bytes on a wire: a row, and its gradient with the key


def allocated(folder: str) -> int:
    """Returns the bytes of the files of a folder and its subfolders."""
    files = (os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)
    return sum(os.stat(path).st_blocks * 512 for path in files)


def main() -> None:
    """Trains every key once, and checks the memory afterwards."""
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
    own_size = BATCH // ranks.size

    def batches() -> tf.data.Dataset:
        part = keys[:, this_rank.rank() * own_size :][:, :own_size].reshape(-1, 1)
        return tf.data.Dataset.from_tensor_slices((part, np.ones((len(part), 1), np.float32))).batch(own_size)

    model.fit(tsps.lookahead(batches(), model, batches=2), verbose=0)
    job = jobs.current()
    taken = {name: allocated(layer.bindings[0].path) for name, layer in layers.items()}
    exchange = allocated(job.group.exchange_path)
    nodes = layers["sharded"].bindings[0].nodes
    statistics = model.optimizer.statistics()
    everyone = ranks.allgather_object(statistics["sharded_rows"], "test.rows")
    print(f"node {job.identity.node}: {taken}, {exchange} of exchanges, {statistics['sharded_rows']} rows", flush=True)
    assert all(abs(rows_of_rank - ROWS / nodes) <= 0.05 * ROWS / nodes for rows_of_rank in everyone), everyone
    # Each plane of a table has a segment allocated ahead of its rows.
    assert taken["sharded"] <= 1.05 * taken["replicated"] / nodes + (2 << 20), taken
    # The exchange holds what all ranks of the node send, receive and reduce in one step, and nothing of earlier steps.
    assert exchange <= 3 * BATCH * ROW + (1 << 20), exchange
    before = exchange
    model.fit(tsps.lookahead(batches(), model, batches=2), verbose=0)
    assert allocated(job.group.exchange_path) <= before + (1 << 20), "exchanges grow"
    ranks.barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
