"""One rank of a job whose last rank does not take part in a lookup of a sharded table.

Arguments: what the others do and what the last rank does, as in "graph-kill"; the folder for results. The others look
up in "eager" mode, in a "graph", or in "fit" (validation). The last rank is "slow": it comes much later, and in "fit"
has fewer batches; "kill": it is killed; "raise": it looks up an id out of range.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps

keras = tf.keras


def main() -> None:
    this_rank.init()
    way, event = sys.argv[1].split("-")
    rank, last = this_rank.rank(), this_rank.size() - 1
    layer = tsps.Embedding(100, 4, placement=tsps.Sharded())
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(tsps.DistributedOptimizer("sgd"), "mse")
    ids = np.arange(12).reshape(4, 3) + rank
    data = tf.data.Dataset.from_tensor_slices((ids, np.zeros((4, 1), np.float32))).batch(2)
    look: Any = tf.function(layer)
    look(tf.constant(ids)), layer(tf.constant(ids))
    if way == "fit":
        model.fit(data, verbose=0, validation_data=data)
    tsps.collectives.current().barrier("test.traced")
    print(f"rank {rank} is pid {os.getpid()}", flush=True)
    if rank == last:
        print(f"rank {rank}: {event}", flush=True)
        if event == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif event == "raise":
            look(tf.constant(ids + 1000))
        elif way != "fit":
            time.sleep(600)
    if way == "fit":  # the last rank has fewer batches
        model.fit(data, verbose=0, validation_data=data.take(1 if rank == last else 2))
        time.sleep(600)
    elif way == "eager":
        layer(tf.constant(ids))
    else:
        look(tf.constant(ids))


if __name__ == "__main__":
    main()
