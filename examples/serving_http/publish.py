"""Trains a small model, and publishes a version of it every few seconds, which server.py serves.

python examples/serving_http/publish.py serve --rows 1000000 --versions 10 --every 5
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np

import tf_sparse_ps as tsps

FIELDS = 4  # ids per sample
_BATCH = 10_000
_SHARE = 100  # each version changes every hundredth row


def main() -> None:
    """Trains and publishes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="directory of versions, which has none yet")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table (default: 1000000)")
    parser.add_argument("--dim", type=int, default=64, help="width of a row (default: 64)")
    parser.add_argument("--versions", type=int, default=2, help="versions to publish (default: 2)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two versions (default: 5)")
    options = parser.parse_args()

    model = keras.Sequential(
        [
            keras.Input([FIELDS], dtype="int64"),
            tsps.Embedding(None, options.dim, name="ids"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.05)), "mse")
    draw = np.random.default_rng(0)
    base = None
    for number in range(1, options.versions + 1):
        count = options.rows if base is None else options.rows // _SHARE
        ids = draw.permutation(options.rows)[: count // FIELDS * FIELDS].reshape(-1, FIELDS)
        model.fit(ids, np.full([len(ids), 1], number), batch_size=_BATCH, verbose=0)
        base = tsps.export(model, os.path.join(options.directory, str(number)), base=base)
        print(f"{base} has the table of step {int(model.optimizer.iterations)}", flush=True)
        if number < options.versions:
            time.sleep(options.every)


if __name__ == "__main__":
    main()
