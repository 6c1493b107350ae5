"""Hooks around each save of an object with tables: they claim the path of the save, and clean up at its end.

All ranks save a model with sharded tables together. Rank 0 writes, and the other ranks send it the rows of their nodes
instead of writing (`collective_calls.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tf_sparse_ps import job
from tf_sparse_ps._compat import _keras, _keras_hooks, _tensorflow
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.layers import collective_calls
from tf_sparse_ps.layers.collective_calls import WRITER, CollectiveSave
from tf_sparse_ps.layers.plain_rows import PlainRows
from tf_sparse_ps.layers.sharded_content import ShardedContent
from tf_sparse_ps.table.path_claim import claimed

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.table.scan import Scan


class _Save:
    """A running call of a function that saves to a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.claimed = False
        self.end = contextlib.ExitStack()
        self.collective: CollectiveSave | None = None


class _Saves(threading.local):
    """The running saves of this thread, the innermost last, and the number of running exports of SavedModels."""

    def __init__(self) -> None:
        self.running: list[_Save] = []
        self.tracing = 0
        self.asset_of: Callable[[TableBinding], str] | None = None
        self.saved: list[Any] = []
        self.plain: dict[str, PlainRows] = {}  # by the paths of tables


_saves = _Saves()


def claim() -> None:
    """Claims the path of this thread's innermost running save until the save ends.

    Paths of Keras files are claimed before they are opened. When TensorFlow saves an object, only its tables know that
    they are part of it. They call this function before TensorFlow writes anything.

    Raises:
      WriterLockedError: Another rank or thread is writing to the path.
    """
    if not _saves.running:
        return
    save = _saves.running[-1]
    if not any(running.claimed and running.path == save.path for running in _saves.running):
        save.end.enter_context(claimed(save.path, f"rank {job.current().rank}"))
        save.claimed = True


def target() -> str | None:
    """Returns the folder that this thread's innermost running save writes to, and makes it. None: there is none."""
    if not _saves.running or "://" in _saves.running[-1].path:
        return None
    try:
        os.makedirs(_saves.running[-1].path, exist_ok=True)
    except OSError:  # TensorFlow will fail, too, and say so
        return None
    return _saves.running[-1].path


@contextlib.contextmanager
def with_plain_tables(bindings: Sequence[TableBinding]) -> Iterator[None]:
    """Lets functions that this thread traces look up the tables in variables, and SavedModels have these variables.

    Raises:
      UnsupportedError: A table is too large.
    """
    try:
        for binding in bindings:
            _saves.plain[binding.path] = PlainRows(binding)
        with _tracing():
            yield
    finally:
        _saves.plain = {}


def has_plain_tables() -> bool:
    """Whether `with_plain_tables` is active in this thread."""
    return bool(_saves.plain)


def plain_rows(binding: TableBinding) -> PlainRows | None:
    """Returns the variables of a table, if `with_plain_tables` is active in this thread, else None."""
    return _saves.plain.get(binding.path)


def asset_of() -> Callable[[TableBinding], str] | None:
    """Returns the argument of `writing_tables`, if that is active in this thread, else None."""
    return _saves.asset_of


@contextlib.contextmanager
def writing_tables(asset_of: Callable[[TableBinding], str]) -> Iterator[list[Any]]:
    """Lets SavedModels of this thread have, for each table, the file that a function returns.

    The caller writes the tables. Other ranks do not take part.

    Yields:
      A list, which gets each object that is saved as a SavedModel.
    """
    _saves.asset_of, _saves.saved = asset_of, []
    try:
        with _tracing():
            yield _saves.saved
    finally:
        _saves.asset_of = None


def at_end(action: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Schedules `action(*args, **kwargs)` for the end of this thread's running save, or of the process."""
    if _saves.running:
        _saves.running[-1].end.callback(action, *args, **kwargs)
    else:  # TensorFlow exports in a way that has no hook here
        atexit.register(action, *args, **kwargs)


def content(binding: TableBinding, call: str, *, slots: bool) -> Scan | ShardedContent:
    """Returns all rows of a table, at one step. Read them within the `with` block of the result.

    The rows of a sharded table are those of all nodes. In a save, the rank that writes calls this function; otherwise
    all ranks call it together.

    Args:
      binding: The table.
      call: The operation that reads the rows, for messages.
      slots: Whether to read the slots.
    """
    if binding.placement != "sharded":
        scan: Scan = binding.reader().scan(slots=slots)
        return scan
    save = _collective_save()
    if save is not None:
        return save.content(binding, slots=slots)
    return ShardedContent(binding, call, slots=slots)


def traces_for_export() -> bool:
    """Whether this thread traces functions for a SavedModel, which has all rows of its tables."""
    return _saves.tracing > 0


@contextlib.contextmanager
def _tracing() -> Iterator[None]:
    _saves.tracing += 1
    try:
        yield
    finally:
        _saves.tracing -= 1


def _collective_save() -> CollectiveSave | None:
    return next((save.collective for save in _saves.running if save.collective is not None), None)


def _run_save(saved: Any, path: Any, call: Callable[[], Any]) -> Any:
    if not isinstance(path, str | os.PathLike):
        return call()  # an open file
    save = _Save(os.path.realpath(path) if "://" not in os.fspath(path) else os.fspath(path))
    _saves.running.append(save)
    try:
        if _saves.plain:
            for number, rows in enumerate(_saves.plain.values()):
                _tensorflow.track(saved, rows, f"tsps_table_{number}")
        elif _saves.asset_of is not None:
            _saves.saved.append(saved)
        elif _collective_save() is None and _has_sharded(saved):
            save.collective = CollectiveSave(save.path)
            if not save.collective.writes:
                return _send(save.collective, save.path, path)
        return _write(save, saved, call)
    finally:
        _saves.running.remove(save)


def _write(save: _Save, saved: Any, call: Callable[[], Any]) -> Any:
    error: BaseException | None = None
    try:
        with save.end, _tracing():
            if save.collective is not None or (isinstance(saved, _keras.Layer) and _has_tables(saved)):
                claim()
            return call()
    except BaseException as caught:
        error = caught
        raise
    finally:
        if save.collective is not None:
            save.collective.end(error)


def _refuse_lite(model: Any) -> None:
    tables = [binding for weight in model.weights if (binding := binding_of(weight)) is not None]
    if tables:
        raise UnsupportedError(
            "the model cannot be converted to TensorFlow Lite, which has no operation that looks up rows of table "
            f"{tables[0].config.name!r}. Build the model for the device with keras.layers.Embedding in place of this "
            "layer, set its rows by set_weights(layer.get_weights()), and convert that model"
        )


def _send(save: CollectiveSave, path: str, path_argument: Any) -> Any:
    """Sends this rank's rows to the rank that saves. Returns the path, as `tf.train.Checkpoint` does."""
    if save.written_to != path and job.current().collectives.kind != "tf.distribute":
        warnings.warn(
            f"rank {WRITER} saves the model, with the rows of all nodes, to {save.written_to}. Rank "
            f"{job.current().rank} writes nothing to {path}. Give all ranks the same path",
            stacklevel=5,
        )
    save.serve()
    return os.fspath(path_argument)


def _has_tables(model: Any) -> bool:
    try:
        return any(binding_of(weight) is not None for weight in model.weights)
    except ValueError:  # Keras 2: the model is not built, so it has no tables
        return False


def _has_sharded(saved: Any) -> bool:
    """Whether a saved object has a sharded table."""
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


_keras_hooks.around_savers(_run_save)
_keras_hooks.around_exports(_tracing)
_keras_hooks.save_by_parts(_has_sharded)
_keras_hooks.export_real_types()
_keras_hooks.compile_unbuilt(_has_tables)
_keras_hooks.before_lite(_refuse_lite)
