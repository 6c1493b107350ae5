"""One of two ranks that save the same model: to one path at once, to two paths, and one after the other.

Argument: the folder for results.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import this_rank

import tf_sparse_ps as tsps
from tf_sparse_ps import errors
from tf_sparse_ps._compat import _keras

keras = tf.keras
IDS = np.arange(12, dtype=np.int64).reshape(4, 3)


def make() -> Any:
    inputs = keras.Input((3,), dtype="int64")
    rows = tsps.Embedding(12, 4, name="words")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was not created in time"
        time.sleep(0.002)


class Gate:
    """Stops a save where it first reads a table. Keras has opened its file by then."""

    def __init__(self) -> None:
        self.stop: Callable[[], None] | None = None
        tsps.Table.scan = self._stopping(tsps.Table.scan)  # type: ignore[method-assign]

    def _stopping(self, read: Any) -> Any:
        def stopping(*args: Any, **options: Any) -> Any:
            stop, self.stop = self.stop, None
            if stop is not None:
                stop()
            return read(*args, **options)

        return stopping


def predictions(model: Any) -> Any:
    return model.predict(IDS, verbose=0)


def served(path: str) -> Any:
    (output,) = tf.saved_model.load(path).signatures["serving_default"](tf.constant(IDS)).values()
    return output.numpy()


def loaded_weights(path: str) -> Any:
    model = make()
    status = model.load_weights(path)
    if status is not None:
        status.expect_partial()
    return predictions(model)


def restored(path: str) -> Any:
    model = make()
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    return predictions(model)


Way = tuple[str, Callable[[Any, str], Any], Callable[[str], Any]]
WAYS: list[Way] = [
    ("model.keras", lambda model, path: model.save(path), lambda path: predictions(keras.models.load_model(path))),
    ("model.weights.h5", lambda model, path: model.save_weights(path), loaded_weights),
    ("model.h5", lambda model, path: model.save(path), loaded_weights),
    ("exported", lambda model, path: model.export(path), served),
    ("saved", lambda model, path: tf.saved_model.save(model, path), served),
    ("deeper/checkpoint", lambda model, path: tf.train.Checkpoint(model=model).write(path), restored),
]
if not _keras.IS_KERAS_3:
    WAYS += [
        ("folder", lambda model, path: model.save(path), served),
        ("weights", lambda model, path: model.save_weights(path), loaded_weights),
    ]


def main() -> None:
    """Prints one line for each way to save."""
    this_rank.init()
    ranks, folder = tsps.collectives.current(), Path(sys.argv[1])
    model = make()
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    model.fit(IDS, np.ones((4, 1), np.float32), verbose=0, callbacks=[tsps.callbacks.BroadcastVariables()])
    want = predictions(model)
    gate = Gate()

    def check(label: str, read: Callable[[str], Any], path: Path) -> None:
        ranks.barrier("test.saved")
        np.testing.assert_allclose(read(os.fspath(path)), want, rtol=1e-5, err_msg=label)
        ranks.barrier("test.read")

    for name, save, read in WAYS:
        path, writing, refused = folder / name, folder / f"{name}-writing", folder / f"{name}-refused"
        writing.parent.mkdir(exist_ok=True)
        if ranks.rank == 0:
            gate.stop = lambda writing=writing, refused=refused: (writing.touch(), wait_for(refused))  # type: ignore
            save(model, os.fspath(path))
        else:
            wait_for(writing)
            message = "nothing"
            try:
                save(model, os.fspath(path))
            except errors.WriterLockedError as error:
                message = str(error)
            refused.touch()
            assert f"{path} is being written by rank 0 (process " in message, message
            print(f"{name} is refused", flush=True)
        check(name, read, path)
        own_path = folder / f"rank{ranks.rank}" / name
        own_path.parent.mkdir(parents=True, exist_ok=True)
        save(model, os.fspath(own_path))
        check(f"{name} of its own", read, own_path)
        if ranks.rank == 1:
            save(model, os.fspath(path))  # the other rank has finished
        check(f"{name} again", read, path)
    ranks.barrier("test.end")
    leftovers = [path.name for path in folder.rglob(".*")]
    assert not leftovers, leftovers
    print("rank is done", flush=True)


main()
