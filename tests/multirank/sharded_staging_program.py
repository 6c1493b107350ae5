"""One rank of the test that owners read rows for coming batches of other nodes from their disks during training.

Each rank looks up keys of other nodes only, so staging for a node's own batches does not help.

Arguments: none; the folder for results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import _table

keras = tf.keras
ROWS, DIM, BATCH, STEPS, PASS = 30_000, 32, 80, 40, 4
MEMORY = 3_490_000  # 1.5 MiB of buffers, some thousand rows, and as many rows that are read ahead


def main() -> None:
    """Trains with and without looking ahead, and counts the rows that ranks waited for."""
    ranks = this_rank.init()
    table = tsps.TableConfig(
        "spread",
        DIM,
        storage=tsps.Tiered(Path(sys.argv[1]) / "disk", memory=MEMORY),
        placement=tsps.Sharded(),
        initializer=keras.initializers.Constant(0.5),
    )
    layer = tsps.Embedding(None, DIM, table=table)
    inputs = keras.Input((1,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    binding = layer.bindings[0]
    keys = np.arange(ROWS)
    for part in np.split(keys, 10):
        binding.assign(part, np.full((len(part), DIM), 0.5, np.float32))
    ranks.barrier("test.filled")
    of_others = keys[_table.owners(keys, binding.nodes) != binding.node]
    random = np.random.default_rng(ranks.rank)

    def dataset() -> tf.data.Dataset:
        drawn = random.permutation(of_others)[: STEPS * BATCH]

        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for batch in np.split(drawn, STEPS):
                yield batch[:, None], np.ones((BATCH, 1), np.float32)

        signature = tf.TensorSpec((BATCH, 1), tf.int64), tf.TensorSpec((BATCH, 1), tf.float32)
        return tf.data.Dataset.from_generator(batches, output_signature=signature)

    def train(batches: tf.data.Dataset) -> tuple[float, float]:
        """Returns the number of rows for which a rank waited, and of those that were read before; of all nodes."""
        before = model.optimizer.statistics()
        for x, y in batches:
            model.train_on_batch(x, y)
            time.sleep(0.02)  # stands for computing
        after = model.optimizer.statistics()
        own_counts = [after[name] - before[name] for name in ("rows_read_late", "rows_read_before")]
        late, ahead = np.sum(ranks.allgather_object(own_counts, "test.read"), axis=0)
        return float(late), float(ahead)

    train(dataset())
    late, before = train(dataset())
    staged_late, staged_before = train(tsps.lookahead(dataset(), model, batches=PASS))
    print(f"on demand: {late} late, {before} before; ahead: {staged_late} late, {staged_before} before", flush=True)
    assert late > ranks.size * STEPS * BATCH / 2, "most rows are on disks"
    assert staged_late < 0.35 * late, (staged_late, late)  # the rows of the first pass are late
    assert staged_before > 1.4 * late, (staged_before, late)  # read for lookups and for steps
    ranks.barrier("test.end")
    print("rank is done", flush=True)


if __name__ == "__main__":
    main()
