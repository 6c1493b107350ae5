"""keras.layers.Embedding with Keras's Adagrad: Keras 2 or 3, whichever the interpreter has."""

from __future__ import annotations

import keras

from benchmarks import features, harness
from benchmarks.peers import Calls, Work, tensorflow_work


def one_table(work: Work) -> Calls:
    """Makes the calls of lookup and step, on one table."""
    tensorflow_work.set_threads(work.threads)
    layer = keras.layers.Embedding(work.rows, work.dim)
    layer.build(None)
    return tensorflow_work.calls(layer, _adagrad(), work, tensorflow_work.no_rows)


def many_tables(work: Work) -> Calls:
    """Makes the calls of lookup and step, on a layer for each feature."""
    tensorflow_work.set_threads(work.threads)
    layer = features.SeparateLayers(lambda _: keras.layers.Embedding(work.rows, work.dim))
    layer.build(work.ids[0].shape)
    return tensorflow_work.calls(layer, _adagrad(), work, tensorflow_work.no_rows)


def _adagrad() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adagrad(harness.LEARNING_RATE)
