"""A rank of a Horovod job that trains a table, and may fail: `horovod_program.py WAY RANK`."""

from __future__ import annotations

import os
import signal
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps

way, failing = sys.argv[1], int(sys.argv[2])
ranks = tsps.init()
assert hvd.is_initialized()
assert (ranks.kind, ranks.rank, ranks.size) == ("horovod", int(os.environ["TFSPS_RANK"]), 2)


class Fail(tf.keras.callbacks.Callback):
    """Fails in the middle of training."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Fails after the third step."""
        if batch == 2 and ranks.rank == failing:
            if way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif way == "raise":
                raise ValueError("mine")


model = tf.keras.Sequential([tsps.Embedding(None, 4), tf.keras.layers.GlobalAveragePooling1D()])
model.compile(tsps.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
model.fit(np.ones((8, 1), np.int64), np.ones((8, 4)), batch_size=1, verbose=0, callbacks=[Fail()])
print(f"trained; tables in {tsps.job.current().group_path}")
