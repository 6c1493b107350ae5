"""A server of the freshness suite: it loads versions, and notes when it has each of them.

python -m benchmarks.freshness_server DIRECTORY FILE
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import tf_sparse_ps as tsps

_POLL_S = 0.1


def main(directory: str, path: str) -> None:
    """Writes a line [step, time] to the file whenever the model has answered with another version."""
    model = None
    with open(path, "a") as seen:
        while True:
            time.sleep(_POLL_S)
            try:
                if model is None:
                    model = tsps.serving.load(directory)
                elif not model.update():
                    continue
            except tsps.errors.NotFoundError:  # there is no version yet, or `follow` has just removed it
                continue
            model(np.zeros([1, 8], np.int64))
            seen.write(json.dumps([model.step, time.time()]) + "\n")
            seen.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
