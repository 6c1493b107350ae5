"""States of `fit`'s other callbacks in a checkpoint: what they have counted and seen since training began.

Keras's callbacks have no method for it, so what is carried of them is listed here, by class; subclasses have it from
theirs. Others say it themselves, by `get_state()` and `set_state(state)`. The file has the state of each rank, as JSON,
and arrays, each once: of best weights most are equal on all ranks.
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

# Attributes of Keras's classes, of Keras 3 and 2; one that a version does not have is left out.
_ATTRIBUTES = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "ModelCheckpoint": ("best", "epochs_since_last_save", "_batches_seen_since_last_saving", "_last_batch_seen"),
}
# These do the same after a restart, or write of the run that they are in.
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
    """Looks at the callbacks of a `fit` before it begins.

    Args:
      callbacks: All of them.
      checkpoint: That saves the others' states.

    Raises:
      UnsupportedError: One whose state is saved comes behind `checkpoint`, which would save it before the end of an
        epoch has reached it; or it has one of `get_state` and `set_state` alone.
    """
    behind = False
    for one in callbacks:
        if one is checkpoint:
            behind = True
            continue
        if _has(one, _GET) != _has(one, _SET):
            raise UnsupportedError(
                f"callback {type(one).__name__} has one of {_GET}() and {_SET}(state): a checkpoint needs both"
            )
        if behind and _name(one) is not None:
            raise UnsupportedError(
                f"{type(one).__name__} comes behind tsps.callbacks.Checkpoint in fit's callbacks: its state would be "
                "saved before the end of an epoch has reached it. Put Checkpoint behind it"
            )


class CallbackStates:
    """The callbacks of a `fit` whose states its checkpoints have."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Reads nothing.

        Args:
          callbacks: All of the `fit`, but for the one that saves checkpoints. Those whose state is not known are
            watched: a warning tells if they seem to have some.
        """
        self._carried = [one for one in callbacks if _name(one) is not None]
        self._watched: dict[int, tuple[Any, dict[str, str]]] | None = None
        self._callbacks = [one for one in callbacks if not _is_without_state(one)]

    def capture(self, ranks: Collectives, *, keep: bool) -> CapturedStates:
        """The states on all ranks, as of now. Every rank calls it.

        Args:
          ranks: The job's.
          keep: This rank is to write them.

        Raises:
          TypeError: On all ranks: a `get_state` returns what is neither JSON nor an array of numbers.
        """
        self._watch()
        arrays: dict[str, npt.NDArray[Any]] = {}

        def encode() -> tuple[list[Any], list[str]]:
            records = [[_name(one), _encode(_state_of(one), arrays, type(one).__name__)] for one in self._carried]
            return records, list(arrays)

        call = "saving the states of callbacks"
        everyone = all_or_none(ranks, encode, call, "tsps.checkpoint.callbacks")
        of_all = set(arrays).intersection(*(names for _, names in everyone))
        if any(len(names) > len(of_all) for _, names in everyone):
            more = {name: array for name, array in arrays.items() if name not in of_all}
            for theirs in ranks.allgather_object(more, "tsps.checkpoint.callbacks.arrays"):
                arrays |= theirs
        return CapturedStates([records for records, _ in everyone], arrays if keep else {})

    def restore(self, stored: Sequence[Record] | None) -> None:
        """Gives the callbacks their states. A warning names each that has none, or that is none of this `fit`.

        Args:
          stored: `read`; None: the checkpoint has none of them.
        """
        left = list(stored or ())
        anew = []
        for one in self._carried:
            at = next((i for i, (name, _) in enumerate(left) if name == _name(one)), None)
            if at is None:
                anew.append(type(one).__name__)
                continue
            _, state = left.pop(at)
            if _has(one, _SET):
                one.set_state(state)
            else:
                for name, value in state.items():
                    setattr(one, name, value)
        if anew:
            warnings.warn(f"the checkpoint has no state of {', '.join(anew)}: it begins anew", stacklevel=3)
        if left:
            names = ", ".join(name for name, _ in left)
            warnings.warn(f"the checkpoint has the state of {names}, and fit has no such callback", stacklevel=3)

    @property
    def any(self) -> bool:
        """Whether there is one whose state is saved."""
        return bool(self._carried)

    @property
    def has_stopped(self) -> bool:
        """Whether an EarlyStopping has ended training, and still would: its patience may have been raised since."""
        stopped = False
        for one in self._carried:
            if _keras.is_callback(one, "EarlyStopping") and one.stopped_epoch > 0:
                if one.wait >= one.patience:
                    stopped = True
                else:
                    one.stopped_epoch = 0
        return stopped

    def _watch(self) -> None:
        """Warns once of each callback that changes attributes that are not carried."""
        if self._watched is None:
            self._watched = {id(one): (one, _look_of(one)) for one in self._callbacks}
        for key, (one, before) in list(self._watched.items()):
            now = _look_of(one)
            changed = sorted(name for name in now if before.get(name) != now[name])
            if changed:
                del self._watched[key]
                warnings.warn(
                    f"callback {type(one).__name__} changes {', '.join(changed)} in training, which checkpoints do not "
                    f"have: after a restart they begin anew. {_GET}() and {_SET}(state) of the callback carry them",
                    stacklevel=5,
                )


class CapturedStates(NamedTuple):
    """The states of callbacks on all ranks."""

    records: list[list[Any]]
    """Of each rank, encoded."""
    arrays: dict[str, npt.NDArray[Any]]
    """That the records name; on rank 0."""

    def write(self, folder: Path, stamp: Mapping[str, Any]) -> Iterator[str]:
        """Writes the file, if there are states, and yields its name. `stamp`: What it says of the step it is of."""
        if any(self.records):
            facts = {**stamp, "records": self.records, "arrays": list(self.arrays)}
            array_file.write(folder / manifest.CALLBACKS, list(enumerate(self.arrays.values())), facts)
            yield manifest.CALLBACKS


def read(folder: Path, stamp: Mapping[str, Any], rank: int, size: int) -> list[Record]:
    """The states of callbacks that a checkpoint has, on this rank.

    Args:
      folder: Of the checkpoint, which has the file.
      stamp: What the file is expected to say of the step that it is of.
      rank, size: This rank, and how many there are. Where others were there, all get what rank 0 had.

    Raises:
      StateError: The file is of another step.
      DamagedFileError: It is not what was written.
    """
    path = folder / manifest.CALLBACKS
    facts, stored = array_file.read(path)
    if (found := {key: facts.get(key) for key in stamp}) != dict(stamp):
        raise StateError(f"{path} is of {found}, and the checkpoint's manifest of {dict(stamp)}: not of one step")
    try:
        records = facts["records"]
        if len(records) != size and any(one != records[0] for one in records):
            warnings.warn(
                f"checkpoint {folder} is of {len(records)} ranks, whose callbacks' states differed: all ranks go on "
                "with those of rank 0",
                stacklevel=4,
            )
        own = records[rank if len(records) == size else 0]
        names, arrays = facts["arrays"], dict(stored)
        by_name = {names[number]: array for number, array in arrays.items()}
        return [(str(name), _decode(state, by_name)) for name, state in own]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _has(callback: Any, method: str) -> bool:
    return callable(getattr(callback, method, None))


def _name(callback: Any) -> str | None:
    """Under which name a checkpoint has the state of a callback; None: it has none."""
    if _has(callback, _GET):
        return type(callback).__name__
    return next((name for name in _ATTRIBUTES if _keras.is_callback(callback, name)), None)


def _attributes(callback: Any) -> tuple[str, ...]:
    return next((names for name, names in _ATTRIBUTES.items() if _keras.is_callback(callback, name)), ())


def _state_of(callback: Any) -> Any:
    if _has(callback, _GET):
        return callback.get_state()
    return {name: getattr(callback, name) for name in _attributes(callback) if hasattr(callback, name)}


def _is_without_state(callback: Any) -> bool:
    """Whether nothing is to be carried but what is known."""
    cls = type(callback)
    return (
        _has(callback, _GET)
        or fits.is_library_callback(cls)
        or any(cls is getattr(_keras.keras.callbacks, name, None) for name in (*_WITHOUT_STATE, *_ATTRIBUTES))
    )


def _look_of(callback: Any) -> dict[str, str]:
    """A callback's attributes that are no carried ones: those that are numbers or text, or how many they have."""
    known = {
        *_attributes(callback),
        *vars(_keras.keras.callbacks.Callback()),
        "monitor_op",
        "min_delta",
        "_current_epoch",
    }
    found = {}
    for name, value in vars(callback).items():
        if name in known:
            continue
        if value is None or isinstance(value, bool | int | float | str | np.generic):
            found[name] = repr(value)
        elif isinstance(value, list | tuple | dict | set | deque):
            found[name] = f"{len(value)} elements"
    return found


def _encode(value: Any, arrays: dict[str, npt.NDArray[Any]], callback: str) -> Any:
    """A state as JSON; adds its arrays to `arrays`, by a name that tells one from all others."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        array = np.array(value)  # a copy: training goes on
        dtype = array.dtype
        if dtype.hasobject or dtype.names or dtype.kind in "USmM":
            raise TypeError(f"the state of callback {callback} has an array of {dtype}: checkpoints have numbers only")
        digest = hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=16)
        name = f"{dtype.name}{list(array.shape)}-{digest.hexdigest()}"
        arrays[name] = array
        return {"array": name, "dtype": dtype.name, "is_scalar": isinstance(value, np.generic)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(one, arrays, callback) for one in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _encode(one, arrays, callback) for key, one in value.items()}}
    raise TypeError(
        f"the state of callback {callback} has a {type(value).__name__}: {_GET}() must return numbers, strings, None, "
        "NumPy arrays of numbers, or lists, tuples and dicts with string keys of these"
    )


def _decode(value: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """The inverse of `_encode`."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = array_file.typed(arrays[value["array"]], tf.as_dtype(value["dtype"]).as_numpy_dtype)
        return array[()] if value["is_scalar"] else array
    ((kind, content),) = value.items()
    if kind == "dict":
        return {key: _decode(one, arrays) for key, one in content.items()}
    return {"list": list, "tuple": tuple}[kind](_decode(one, arrays) for one in content)
