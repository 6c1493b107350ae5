"""The soaked process: `fit`, again and again, with checkpoints, evaluations, exports and early ends.

It prints one line of JSON per fit: the resources that it holds, with the fields of `measure.py`. With `--peer`, models
have Keras's own layers and optimizer, and a Python function opens the dataset, as with checkpoints. The growth of the
peer is therefore TensorFlow's and Keras's. The program omits two things, because Keras alone leaks much more there:
70 KB for a Keras file, and 500 KB for a model that is compiled and dropped.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tests.soak import measure

ROWS, BATCH, BATCHES = 500, 32, 6
# The additional work of each fit, in a round of ten.
ROUND = "evaluate stop export error plain break evaluate stop error predict".split()


class Stop(keras.callbacks.Callback):
    """Ends a fit after two batches."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error = error

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Raises the error, or asks `fit` to end."""
        if batch == 1 and self._error is not None:
            raise self._error
        self.model.stop_training = batch == 1


class Soak:
    """A model that is trained in many fits."""

    def __init__(self, folder: Path, *, peer: bool = False) -> None:
        """`folder`: a folder for files. `peer`: whether to use no tables."""
        self._peer = peer
        keras.utils.set_random_seed(1)
        self._folder = folder
        generator = np.random.default_rng(1)
        self._ids = generator.integers(0, ROWS, (BATCH * BATCHES, 4))
        self._bags = generator.integers(0, ROWS, (BATCH * BATCHES, 3))
        self._labels = (self._ids.sum(1, keepdims=True) % 2).astype("float32")
        self._model = self._make()
        self._checkpoint = tsps.callbacks.Checkpoint(folder / "checkpoints", every_steps=4, keep=2)
        self._epochs = 0

    def _make(self) -> keras.Model:
        ids = keras.Input([4], dtype="int64", name="ids")
        bags = keras.Input([3], dtype="int64", name="bags")
        optimizer = keras.optimizers.Adam(0.01)
        if self._peer:
            layers = keras.layers.Embedding(ROWS, 8), keras.layers.Embedding(ROWS, 8)
            bag = keras.layers.GlobalAveragePooling1D()(layers[1](bags))
        else:
            layers = tsps.Embedding(ROWS, 8), tsps.EmbeddingReduce(None, 8)
            bag, optimizer = layers[1](bags), tsps.DistributedOptimizer(optimizer)
        joined = keras.layers.Concatenate()([keras.layers.Flatten()(layers[0](ids)), bag])
        model = keras.Model({"ids": ids, "bags": bags}, keras.layers.Dense(1, activation="sigmoid")(joined))
        model.compile(optimizer, "binary_crossentropy", metrics=["mae"])
        return model

    def _batches(self, epoch: int = 0) -> tf.data.Dataset:
        whole = tf.data.Dataset.from_tensor_slices(({"ids": self._ids, "bags": self._bags}, self._labels))
        return whole.shuffle(BATCH * BATCHES, seed=epoch).batch(BATCH)

    def fit(self, number: int) -> None:
        """Makes one fit, and its additional work."""
        task = ROUND[number % len(ROUND)]
        callbacks: list[Any] = [] if self._peer else [self._checkpoint]
        if task == "stop":
            callbacks.insert(0, Stop())
        elif task == "error":
            callbacks.insert(0, Stop(KeyError("planned")))
        self._epochs += 1
        epochs = 1 if self._peer else self._epochs  # a checkpoint records which epochs are finished
        data = _opened(self._batches) if self._peer else self._checkpoint.dataset(self._batches)
        try:
            self._model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
        except KeyError:
            assert task == "error"
        if task == "evaluate":
            self._model.evaluate(self._batches(), verbose=0)
        elif task == "predict":
            self._model.predict(self._batches(), verbose=0)
        elif task == "export":
            self._model.export(self._folder / "export", **_quiet())
            shutil.rmtree(self._folder / "export")
        elif task == "break":
            for _ in self._batches().take(1):
                break


_open: Callable[[], tf.data.Dataset]  # opens the peer's datasets
_kept: list[tf.data.Dataset] = []


@functools.cache
def _open_function() -> Any:
    """Returns one function for all datasets, because TensorFlow keeps each function as long as the process lives."""

    def opened() -> tf.Tensor:
        _kept[:] = [_open()]  # the iterator needs its dataset's Python objects
        return tf.data.experimental.to_variant(_kept[0])

    @tf.function(input_signature=[], autograph=False)
    def open_dataset() -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(opened, [], tf.variant), [])

    with tf.init_scope():
        return open_dataset.get_concrete_function()


def _opened(make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
    """Returns a dataset that a Python function opens when an iteration begins."""
    global _open
    _open = make
    spec = make().element_spec
    first = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
    return first.flat_map(lambda _: tf.data.experimental.from_variant(_open_function()(), spec))


def _quiet() -> dict[str, bool]:
    return {"verbose": False} if hasattr(keras, "version") else {}


class _Leaks:
    """The control: each fit keeps a resource of one kind."""

    def __init__(self, kind: str, folder: str) -> None:
        self._kind, self._folder, self._kept = kind, folder, []

    def plant(self, number: int) -> None:
        """Leaks once."""
        if self._kind == "memory":
            self._kept.append(bytearray(5000))
        elif self._kind == "descriptors":
            self._kept.append(os.open("/dev/null", os.O_RDONLY))
        elif self._kind == "threads":
            thread = threading.Thread(target=threading.Event().wait, daemon=True)
            thread.start()
        elif self._kind == "shared":
            Path(self._folder, f"planted-{number}").touch()


def main() -> None:
    """Runs the fits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fits", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--leak", default="none")
    parser.add_argument("--peer", action="store_true")
    arguments = parser.parse_args()
    tables = os.environ["TFSPS_DIR"]
    leaks = _Leaks(arguments.leak, tables)
    soak = Soak(arguments.folder, peer=arguments.peer)
    for number in range(arguments.fits):
        soak.fit(number)
        leaks.plant(number)
        print(json.dumps(dataclasses.asdict(measure.held(tables))), flush=True)


if __name__ == "__main__":
    main()
