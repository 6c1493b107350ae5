"""keras.layers.Embedding with Keras's Adagrad: Keras 2 or 3, whichever the interpreter has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from benchmarks.peers import tensorflow_work


def make(
    *, rows: int, dim: int, ids: Sequence[np.ndarray], gradients: Sequence[np.ndarray], threads: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Lookup and step."""
    tensorflow_work.set_threads(threads)
    layer = keras.layers.Embedding(rows, dim)
    layer.build(None)
    optimizer = keras.optimizers.Adagrad(tensorflow_work.LEARNING_RATE)
    return tensorflow_work.cases(layer, optimizer, ids, gradients)
