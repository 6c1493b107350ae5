"""The states of `fit`'s other callbacks in a checkpoint: what they have counted and seen since training began.

Keras's callbacks have no method that returns their state, so this module lists the attributes to save, by class;
subclasses inherit the list. Other callbacks have `get_state()` and `set_state(state)`. The file holds the states of
each rank as JSON, and each array once: most best weights are equal on all ranks.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import array_file, manifest
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import all_or_none
from tf_sparse_ps.errors import DamagedFileError, StateError, UnsupportedError
from tf_sparse_ps.training import fits

# The attributes of classes of Keras 3 and 2. Those that a version does not have are left out.
_ATTRIBUTES = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "ModelCheckpoint": ("best", "epochs_since_last_save", "_batches_seen_since_last_saving", "_last_batch_seen"),
}
# These do the same after a restart, or report the run that they are in.
_WITHOUT_STATE = (
    "BaseLogger",
    "CSVLogger",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ProgbarLogger",
    "RemoteMonitor",
    "TensorBoard",
    "TerminateOnNaN",
)
_GET, _SET = "get_state", "set_state"

Record = tuple[str, Any]  # the name of a callback's class, and its state


def refuse_order(callbacks: Sequence[Any], checkpoint: Any) -> None:
    """Checks the callbacks of a `fit` before it begins.

    Args:
      callbacks: All callbacks.
      checkpoint: The callback that saves the states of the others.

    Raises:
      UnsupportedError: A callback whose state is saved comes after `checkpoint`, so its state would be saved before it
        has seen the end of the epoch; or a callback has only one of `get_state` and `set_state`.
    """
    is_after = False
    for callback in callbacks:
        if callback is checkpoint:
            is_after = True
            continue
        if _has(callback, _GET) != _has(callback, _SET):
            raise UnsupportedError(
                f"callback {type(callback).__name__} has one of {_GET}() and {_SET}(state): a checkpoint needs both"
            )
        if is_after and _name(callback) is not None:
            raise UnsupportedError(
                f"{type(callback).__name__} comes after tsps.callbacks.Checkpoint in fit's callbacks: its state would "
                f"be saved before it has seen the end of the epoch. Put Checkpoint after {type(callback).__name__}"
            )


class CallbackStates:
    """The callbacks of a `fit` whose states are saved in its checkpoints."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Reads nothing.

        Args:
          callbacks: All callbacks of the `fit`, except for the one that saves checkpoints. A warning names those that
            seem to have a state which is not saved.
        """
        self._carried = [callback for callback in callbacks if _name(callback) is not None]
        self._watched: dict[int, tuple[Any, dict[str, str]]] | None = None
        self._unknown = [callback for callback in callbacks if not _is_known(callback)]

    def capture(self, ranks: Collectives, *, keep: bool) -> CapturedStates:
        """Copies the states on all ranks. Every rank calls it.

        Args:
          ranks: The job's collectives.
          keep: Whether this rank writes the states.

        Raises:
          TypeError: On all ranks: a `get_state` returns what is neither JSON nor an array of numbers.
        """
        self._watch()
        arrays: dict[str, npt.NDArray[Any]] = {}

        def encode() -> tuple[list[Any], list[str]]:
            records = [
                [_name(callback), _encode(_state_of(callback), arrays, type(callback).__name__)]
                for callback in self._carried
            ]
            return records, list(arrays)

        call = "saving the states of callbacks"
        encoded = all_or_none(ranks, encode, call, "tsps.checkpoint.callbacks")
        common_names = set(arrays).intersection(*(names for _, names in encoded))
        if any(len(names) > len(common_names) for _, names in encoded):
            differing = {name: array for name, array in arrays.items() if name not in common_names}
            for other_arrays in ranks.allgather_object(differing, "tsps.checkpoint.callbacks.arrays"):
                arrays |= other_arrays
        return CapturedStates([records for records, _ in encoded], arrays if keep else {})

    def restore(self, stored: Sequence[Record] | None, *, other_model: bool = False) -> None:
        """Gives the callbacks their states.

        A warning names callbacks that the checkpoint has no state of, and states that no callback of this `fit` has.

        Args:
          stored: The result of `read`. None: the checkpoint has no states.
          other_model: Whether the model differs from the one that was saved, so that best weights do not fit it, or
            are in another order.
        """
        unused = list(stored or ())
        without_state = []
        for callback in self._carried:
            at = next((i for i, (name, _) in enumerate(unused) if name == _name(callback)), None)
            if at is None:
                without_state.append(type(callback).__name__)
                continue
            _, state = unused.pop(at)
            if other_model and isinstance(state, dict) and state.get("best_weights") is not None:
                warnings.warn(
                    f"{type(callback).__name__} starts from its initial state: the best weights in the checkpoint are "
                    "those of the model before its change",
                    stacklevel=3,
                )
                continue
            if _has(callback, _SET):
                callback.set_state(state)
            else:
                for name, value in state.items():
                    setattr(callback, name, value)
        if without_state:
            names = ", ".join(without_state)
            warnings.warn(f"the checkpoint has no state of {names}: it starts from its initial state", stacklevel=3)
        if unused:
            names = ", ".join(name for name, _ in unused)
            warnings.warn(f"the checkpoint has the state of {names}, and fit has no such callback", stacklevel=3)

    @property
    def any(self) -> bool:
        """Whether there is a callback whose state is saved."""
        return bool(self._carried)

    @property
    def has_stopped(self) -> bool:
        """Whether an EarlyStopping has ended training, and still would: its patience may have been raised since."""
        has_stopped = False
        for callback in self._carried:
            if _keras.is_callback(callback, "EarlyStopping") and callback.stopped_epoch > 0:
                if callback.wait >= callback.patience:
                    has_stopped = True
                else:
                    callback.stopped_epoch = 0
        return has_stopped

    def _watch(self) -> None:
        """Warns once of each callback that changes attributes which are not saved."""
        if self._watched is None:
            self._watched = {id(callback): (callback, _summary(callback)) for callback in self._unknown}
        for key, (callback, before) in list(self._watched.items()):
            now = _summary(callback)
            changed = sorted(name for name in now if before.get(name) != now[name])
            if changed:
                del self._watched[key]
                warnings.warn(
                    f"callback {type(callback).__name__} changes {', '.join(changed)} in training. Checkpoints do not "
                    "save these attributes, so they have their initial values after a restart. To save them, give the "
                    f"callback {_GET}() and {_SET}(state)",
                    stacklevel=5,
                )


class CapturedStates(NamedTuple):
    """The states of callbacks on all ranks."""

    records: list[list[Any]]
    """The encoded states of each rank."""
    arrays: dict[str, npt.NDArray[Any]]
    """The arrays that the records name; on the rank that writes them."""

    def write(self, folder: Path, stamp: Mapping[str, Any]) -> Iterator[str]:
        """Writes the file, if there are states, and yields its name. `stamp` says which step it is of."""
        if any(self.records):
            facts = {**stamp, "records": self.records, "arrays": list(self.arrays)}
            array_file.write(folder / manifest.CALLBACKS, list(enumerate(self.arrays.values())), facts)
            yield manifest.CALLBACKS


def read(folder: Path, stamp: Mapping[str, Any], rank: int, size: int) -> list[Record]:
    """Reads the states of this rank's callbacks.

    Args:
      folder: The folder of a checkpoint that has the file.
      stamp: The step that the file is expected to be of.
      rank, size: This rank, and the number of ranks. If another number of ranks saved the file, all of them get the
        states of rank 0.

    Raises:
      StateError: The file is of another step.
      DamagedFileError: The file is not what was written.
    """
    path = folder / manifest.CALLBACKS
    facts, stored = array_file.read(path)
    if (file_stamp := {key: facts.get(key) for key in stamp}) != dict(stamp):
        raise StateError(f"{path} is of {file_stamp}, and the checkpoint's manifest of {dict(stamp)}: not of one step")
    try:
        records = facts["records"]
        if len(records) != size and any(states != records[0] for states in records):
            warnings.warn(
                f"checkpoint {folder} was saved by {len(records)} ranks, whose callbacks' states differed. All ranks "
                "resume with the states of rank 0",
                stacklevel=4,
            )
        states = records[rank if len(records) == size else 0]
        names, arrays = facts["arrays"], dict(stored)
        by_name = {names[number]: array for number, array in arrays.items()}
        return [(str(name), _decode(state, by_name)) for name, state in states]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _has(callback: Any, method: str) -> bool:
    return callable(getattr(callback, method, None))


def _name(callback: Any) -> str | None:
    """Returns the name under which a callback's state is saved, or None if it is not saved."""
    if _has(callback, _GET):
        return type(callback).__name__
    return next((name for name in _ATTRIBUTES if _keras.is_callback(callback, name)), None)


def _attributes(callback: Any) -> tuple[str, ...]:
    return next((names for name, names in _ATTRIBUTES.items() if _keras.is_callback(callback, name)), ())


def _state_of(callback: Any) -> Any:
    if _has(callback, _GET):
        return callback.get_state()
    return {name: getattr(callback, name) for name in _attributes(callback) if hasattr(callback, name)}


def _is_known(callback: Any) -> bool:
    """Whether it is known which state a callback has, if any."""
    cls = type(callback)
    return (
        _has(callback, _GET)
        or fits.is_library_callback(cls)
        or any(cls is getattr(_keras.keras.callbacks, name, None) for name in (*_WITHOUT_STATE, *_ATTRIBUTES))
    )


def _summary(callback: Any) -> dict[str, str]:
    """Summarizes the attributes of a callback that are not saved: numbers and strings, and sizes of containers."""
    left_out = {
        *_attributes(callback),
        *vars(_keras.keras.callbacks.Callback()),
        "monitor_op",
        "min_delta",
        "_current_epoch",
    }
    summary = {}
    for name, value in vars(callback).items():
        if name in left_out:
            continue
        if value is None or isinstance(value, bool | int | float | str | np.generic):
            summary[name] = repr(value)
        elif isinstance(value, list | tuple | dict | set | deque):
            summary[name] = f"{len(value)} elements"
    return summary


def _encode(value: Any, arrays: dict[str, npt.NDArray[Any]], callback: str) -> Any:
    """Returns a state as JSON. Adds its arrays to `arrays`, under names that depend on their contents."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        array = np.array(value)  # a copy: training continues
        dtype = array.dtype
        if dtype.hasobject or dtype.names or dtype.kind in "USmM":
            raise TypeError(f"the state of callback {callback} has an array of {dtype}: checkpoints have numbers only")
        digest = hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=16)
        name = f"{dtype.name}{list(array.shape)}-{digest.hexdigest()}"
        arrays[name] = array
        return {"array": name, "dtype": dtype.name, "is_scalar": isinstance(value, np.generic)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(element, arrays, callback) for element in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _encode(element, arrays, callback) for key, element in value.items()}}
    raise TypeError(
        f"the state of callback {callback} has a {type(value).__name__}: {_GET}() must return numbers, strings, None, "
        "NumPy arrays of numbers, or lists, tuples and dicts with string keys of these"
    )


def _decode(value: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Returns the state that `_encode` has encoded."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = array_file.typed(arrays[value["array"]], tf.as_dtype(value["dtype"]).as_numpy_dtype)
        return array[()] if value["is_scalar"] else array
    ((kind, content),) = value.items()
    if kind == "dict":
        return {key: _decode(element, arrays) for key, element in content.items()}
    return {"list": list, "tuple": tuple}[kind](_decode(element, arrays) for element in content)
