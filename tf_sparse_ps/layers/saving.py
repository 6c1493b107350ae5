"""What is around a save of something with tables: its path claimed, and what is undone when it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras, _keras_hooks
from tf_sparse_ps.table.path_claim import claimed


class _Save:
    """A call of a function that saves to a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.claimed = False
        self.end = contextlib.ExitStack()


class _Saves(threading.local):
    """Those that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.running: list[_Save] = []


_saves = _Saves()


def claim() -> None:
    """Claims the path of the save that this thread is in, if it is in one, until that ends.

    Keras's files are claimed before they are opened; of what TensorFlow saves only its tables know that they are part
    of it. They call this, before TensorFlow writes anything.

    Raises:
      WriterLockedError: Another rank, or thread, is writing to the path.
    """
    if not _saves.running:
        return
    save = _saves.running[-1]
    if not any(one.claimed and one.path == save.path for one in _saves.running):
        save.end.enter_context(claimed(save.path, f"rank {job.current().rank}"))
        save.claimed = True


def at_end(action: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Has `action(*args, **kwargs)` called when the save ends that this thread is in, or the process."""
    if _saves.running:
        _saves.running[-1].end.callback(action, *args, **kwargs)
    else:  # TensorFlow exports in a way that is not known here
        atexit.register(action, *args, **kwargs)


@contextlib.contextmanager
def _around(saved: Any, path: Any) -> Iterator[None]:
    if not isinstance(path, str | os.PathLike):
        yield  # an open file
        return
    save = _Save(os.path.realpath(path) if "://" not in os.fspath(path) else os.fspath(path))
    _saves.running.append(save)
    try:
        with save.end:
            if isinstance(saved, _keras.Layer) and _has_tables(saved):
                claim()
            yield
    finally:
        _saves.running.remove(save)


def _has_tables(model: Any) -> bool:
    try:
        return any(getattr(weight, "tsps_binding", None) is not None for weight in model.weights)
    except ValueError:  # Keras 2: it is not built, and has none
        return False


_keras_hooks.around_savers(_around)
