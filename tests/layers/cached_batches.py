"""The data that `cached_devices_program.py` trains with."""

from __future__ import annotations

import numpy as np

ROWS, DIM, BATCH, BATCHES, WIDTH = 240, 6, 12, 16, 4
_random = np.random.default_rng(0)
IDS = np.minimum(_random.zipf(1.25, size=(BATCH * BATCHES, WIDTH)), ROWS) - 1
TARGETS = _random.normal(size=(len(IDS), 1)).astype(np.float32)
VALUES = _random.normal(size=(ROWS, DIM)).astype(np.float32)
