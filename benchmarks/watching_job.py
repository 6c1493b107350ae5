"""One rank of the suite `watching`: trains a small model by `fit`, until the folder has a file `stop`.

Rank 0 writes `ready.json` there after the first epoch, with the path of the group.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from benchmarks import harness

keras = tf.keras
DIM, FIELDS, BATCH, HIDDEN = 32, 16, 1024, 64
ROWS, QUICK_ROWS = 1_000_000, 10_000
_STEPS = 20  # of an epoch, after which the job checks whether to stop


class _UntilStopped(keras.callbacks.Callback):
    def __init__(self, folder: Path, group: Any) -> None:
        super().__init__()
        self._folder, self._group = folder, group

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        ranks = tsps.collectives.current()
        if epoch == 0 and ranks.rank == 0:
            ready = self._folder / "ready.part"
            ready.write_text(json.dumps({"group": self._group()}))
            ready.rename(self._folder / "ready.json")
        self.model.stop_training = ranks.broadcast_object((self._folder / "stop").exists(), 0, "bench.stop")


def main() -> None:
    """Trains the model."""
    options = harness.job_options(__doc__)
    ranks = tsps.init()
    rows = QUICK_ROWS if options.quick else ROWS
    layer = tsps.Embedding(None, DIM, name="words")
    model = keras.Sequential([keras.Input([FIELDS], dtype="int64"), layer, keras.layers.Flatten()])
    model.add(keras.layers.Dense(HIDDEN, activation="relu"))
    model.add(keras.layers.Dense(1))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.05)), "mse")
    ids = np.stack(harness.zipf_ids(rows, BATCH * FIELDS, _STEPS, seed=ranks.rank)).reshape(-1, FIELDS)
    data = tf.data.Dataset.from_tensor_slices((ids, np.ones([len(ids), 1], np.float32)))
    stopped = _UntilStopped(options.folder, lambda: layer.bindings[0].group.path)
    model.fit(data.batch(BATCH), epochs=1 << 30, verbose=0, callbacks=[stopped])


if __name__ == "__main__":
    main()
