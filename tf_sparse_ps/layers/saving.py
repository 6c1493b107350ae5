"""What is around a save of something with tables: its path claimed, and what is undone when it ends.

A model with tables that are spread over nodes is saved by all ranks together: rank 0 writes, and the others send it
what their nodes have, instead of writing (`collective_calls.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras, _keras_hooks, _tensorflow
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.layers import collective_calls
from tf_sparse_ps.layers.collective_calls import WRITER, CollectiveSave
from tf_sparse_ps.layers.sharded_content import ShardedContent
from tf_sparse_ps.table.path_claim import claimed

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.table.scan import Scan


class _Save:
    """A call of a function that saves to a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.claimed = False
        self.end = contextlib.ExitStack()
        self.together: CollectiveSave | None = None


class _Saves(threading.local):
    """Those that this thread is in, the innermost last, and how many functions for SavedModels it is tracing."""

    def __init__(self) -> None:
        self.running: list[_Save] = []
        self.tracing = 0


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


def content(binding: TableBinding, call: str, *, slots: bool) -> Scan | ShardedContent:
    """All rows of a table, as of one step, to be read within its `with` block.

    Of a sharded one those of all nodes: in a save the rank that writes asks for them, elsewhere all ranks, together.

    Args:
      binding: Of the table.
      call: What they are read for.
      slots: With slots.
    """
    if binding.placement != "sharded":
        scan: Scan = binding.reader().scan(slots=slots)
        return scan
    together = _together()
    if together is not None:
        return together.content(binding, slots=slots)
    return ShardedContent(binding, call, slots=slots)


def traces_for_export() -> bool:
    """Whether a function that this thread traces is for a SavedModel, in which a table has all its rows."""
    return _saves.tracing > 0


@contextlib.contextmanager
def _tracing() -> Iterator[None]:
    _saves.tracing += 1
    try:
        yield
    finally:
        _saves.tracing -= 1


def _together() -> CollectiveSave | None:
    return next((one.together for one in _saves.running if one.together is not None), None)


def _around(saved: Any, path: Any, call: Callable[[], Any]) -> Any:
    if not isinstance(path, str | os.PathLike):
        return call()  # an open file
    save = _Save(os.path.realpath(path) if "://" not in os.fspath(path) else os.fspath(path))
    _saves.running.append(save)
    try:
        if _together() is None and _has_sharded(saved):
            save.together = CollectiveSave(save.path)
            if not save.together.writes:
                return _send(save.together, save.path, path)
        return _write(save, saved, call)
    finally:
        _saves.running.remove(save)


def _write(save: _Save, saved: Any, call: Callable[[], Any]) -> Any:
    error: BaseException | None = None
    try:
        with save.end, _tracing():
            if save.together is not None or (isinstance(saved, _keras.Layer) and _has_tables(saved)):
                claim()
            return call()
    except BaseException as caught:
        error = caught
        raise
    finally:
        if save.together is not None:
            save.together.end(error)


def _refuse_lite(model: Any) -> None:
    tables = [binding for weight in model.weights if (binding := binding_of(weight)) is not None]
    if tables:
        raise UnsupportedError(
            f"TensorFlow Lite has no operation that looks rows up in the table {tables[0].config.name!r}. Build the "
            "model for the device with keras.layers.Embedding in the place of this layer, give it the rows by "
            "set_weights(layer.get_weights()), and convert that model"
        )


def _send(together: CollectiveSave, path: str, given: Any) -> Any:
    """Takes part in a save by another rank. Returns what `tf.train.Checkpoint` would, its path."""
    if together.written_to != path and job.current().collectives.kind != "tf.distribute":
        warnings.warn(
            f"rank {WRITER} saves the model, with the rows of all nodes, to {together.written_to}; rank "
            f"{job.current().rank} writes nothing to {path}",
            stacklevel=5,
        )
    together.serve()
    return os.fspath(given)


def _has_tables(model: Any) -> bool:
    try:
        return any(binding_of(weight) is not None for weight in model.weights)
    except ValueError:  # Keras 2: it is not built, and has none
        return False


def _has_sharded(saved: Any) -> bool:
    """Whether what is saved has a table whose rows are spread over nodes."""
    if not collective_calls.any_sharded():
        return False
    if isinstance(saved, _keras.Layer):
        try:
            parts = saved.weights
        except ValueError:  # see `_has_tables`
            return False
    else:
        parts = _tensorflow.saved_with(saved)
    return any(binding is not None and binding.placement == "sharded" for binding in map(binding_of, parts))


_keras_hooks.around_savers(_around)
_keras_hooks.around_exports(_tracing)
_keras_hooks.save_by_parts(_has_sharded)
_keras_hooks.export_real_types()
_keras_hooks.compile_unbuilt(_has_tables)
_keras_hooks.before_lite(_refuse_lite)
