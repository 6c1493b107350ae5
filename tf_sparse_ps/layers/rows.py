"""A table's content in and out of NumPy: the whole matrix of a bounded table, and everything of any table.

Everything is a dict of arrays: `keys` int64[n], `rows` float32[n, dim], `slot_0`, ... float32[n, dim] (or [n, 1], of a
rule that keeps one float per row), and `meta`, JSON in uint8. Keys that are not there have initial values, so `meta`
says which.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import _table, optimizers
from tf_sparse_ps.errors import InvalidArgumentError, UnsupportedError
from tf_sparse_ps.layers import saving

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding

_VERSION = 1
_CHUNK_ROWS = 1 << 18
_MAX_CHECKPOINT_BYTES = 2**31 - 2**20


def matrix(binding: TableBinding, caller: str) -> npt.NDArray[np.float32]:
    """All rows of a bounded table, float32[key_limit, dim].

    Raises:
      UnsupportedError: The table is unbounded; names `caller`.
    """
    limit = binding.config.key_limit
    if limit is None:
        raise UnsupportedError(
            f"{caller}: the table of layer {binding.config.name!r} has an unbounded vocabulary, which is no matrix. "
            "model.save(), model.save_weights() and tsps.Table carry keys, rows and slots"
        )
    reader = binding.reader()
    result = np.empty((limit, binding.config.dim), np.float32)
    absent = np.ones(limit, np.bool_)
    with reader.scan(slots=False) as scan:
        for block in scan:
            result[block.keys] = block.rows
            absent[block.keys] = False
    for start in range(0, limit, _CHUNK_ROWS):
        keys = start + np.flatnonzero(absent[start : start + _CHUNK_ROWS])
        result[keys] = _table.initial_rows(reader.core_initializer(), keys, binding.config.dim)
    return result


def check_matrix(binding: TableBinding, value: Any) -> npt.NDArray[np.float32]:
    """`value` as float32[key_limit, dim].

    Raises:
      ValueError: Another shape, in Keras's words; or the table is unbounded.
    """
    limit, dim = binding.config.key_limit, binding.config.dim
    array = np.asarray(value)
    if limit is None:
        matrix(binding, "set_weights()")
    if array.shape != (limit, dim):
        raise ValueError(
            f"Layer {binding.config.name} weight shape {(limit, dim)} is not compatible with provided weight shape "
            f"{array.shape}."
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def assign_matrix(binding: TableBinding, value: Any) -> None:
    """Sets all rows of a bounded table; slots of rows that are there stay."""
    array = check_matrix(binding, value)
    binding.assign(np.arange(len(array), dtype=np.int64), array)


def read(binding: TableBinding) -> dict[str, npt.NDArray[Any]]:
    """Everything of a table."""
    with binding.reader().scan() as scan:
        rule = scan.optimizer
        keys, values, slots, _ = scan.read()
    meta = {
        "version": _VERSION,
        "dim": binding.config.dim,
        "key_limit": binding.config.key_limit,
        "optimizer": rule["kind"],
        "slot_init": [_shortest(value) for value in rule["slot_init"]],
        "initializer": _initializer(binding),
    }
    state: dict[str, npt.NDArray[Any]] = {"keys": keys, "rows": values}
    state |= {f"slot_{index}": slot for index, slot in enumerate(slots)}
    state["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    return state


def write(binding: TableBinding, state: Mapping[str, Any]) -> None:
    """Makes the table what `read` returned: other keys are erased. Every rank calls it; the leader acts.

    A table without an optimizer gets the one the state has slots of; a table with another one gets the rows alone.

    Raises:
      InvalidArgumentError: The state is of another version, width or key limit.
    """
    meta = json.loads(bytes(np.asarray(state["meta"])))
    config = binding.config
    expected = {"version": _VERSION, "dim": config.dim, "key_limit": config.key_limit}
    found = {name: meta[name] for name in expected}
    if found != expected:
        raise InvalidArgumentError(f"layer {config.name!r} cannot load rows of {found}. Expected: {expected}")
    keys = np.asarray(state["keys"], np.int64)
    values = np.asarray(state["rows"], np.float32)
    n_slots = sum(name.startswith("slot_") for name in state)
    slots = tuple(np.asarray(state[f"slot_{index}"], np.float32) for index in range(n_slots))
    if slots:
        stored = (meta["optimizer"], tuple(map(np.float32, meta["slot_init"])))
        if binding.optimizer is None:
            binding.bind_optimizer(optimizers.of_kind(meta["optimizer"], meta["slot_init"]))
        elif (binding.optimizer.kind, tuple(map(np.float32, binding.optimizer.slot_init))) != stored:
            warnings.warn(
                f"layer {config.name!r}: the saved slots are of {stored}, the table is trained by "
                f"{binding.optimizer}; rows are loaded, slots start anew",
                stacklevel=3,
            )
            widths = _table.slot_widths(binding.optimizer.kind, config.dim)
            slots = _initial_slots(len(keys), widths, binding.optimizer.slot_init)
    mine = _initializer(binding)
    if not _same_values(meta["initializer"], mine):
        if config.key_limit is None:
            warnings.warn(
                f"layer {config.name!r}: keys that were never trained read initial values of this table, not of the "
                "saved one; load the whole model (keras.models.load_model) to keep them",
                stacklevel=3,
            )
        else:
            keys, values, slots = _complete(meta, config.key_limit, keys, values, slots)
    binding.assign(keys, values, slots, erase_others=True)


def _complete(meta: Mapping[str, Any], limit: int, keys: Any, values: Any, slots: Any) -> Any:
    """Adds the saved table's initial rows for the keys it did not hold."""
    absent = np.setdiff1d(np.arange(limit, dtype=np.int64), keys)
    initial = _table.initial_rows(meta["initializer"], absent, meta["dim"])
    fresh = _initial_slots(len(absent), [slot.shape[1] for slot in slots], meta["slot_init"])
    filled = [np.concatenate(parts) for parts in zip(slots, fresh, strict=True)]
    return np.concatenate([keys, absent]), np.concatenate([values, initial]), tuple(filled)


def _initial_slots(n: int, widths: Sequence[int], starts: Sequence[float]) -> tuple[npt.NDArray[np.float32], ...]:
    """What n new rows have in slots of these widths."""
    return tuple(np.full((n, width), start, np.float32) for width, start in zip(widths, starts, strict=True))


def _initializer(binding: TableBinding) -> dict[str, Any]:
    return dict(binding.reader().core_initializer())


def _same_values(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two initializers give every key the same row."""
    relevant = ["kind", "a", "b"] + ([] if a["kind"] in ("zeros", "constant") else ["seed", "salt"])
    return all(a[name] == b[name] for name in relevant)


def _shortest(value: float) -> float:
    """The number a float32 was written as: 0.1, not 0.10000000149011612."""
    return float(str(np.float32(value)))


class CheckpointState(tf.train.experimental.PythonState):
    """A table as part of a `tf.train.Checkpoint` (and of Keras 2's save_weights): everything of it, in one string.

    It is no part of a SavedModel (`anchor.py`), which has the rows as an asset.
    """

    def __init__(self, binding: TableBinding) -> None:
        self._binding = binding

    def serialize(self) -> bytes:
        """The table as the bytes of an .npz file."""
        saving.claim()
        size = self._binding.reader().stats()["bytes"]
        if size > _MAX_CHECKPOINT_BYTES:
            raise UnsupportedError(
                f"the table of layer {self._binding.config.name!r} has {size} bytes, too many for a "
                "tf.train.Checkpoint; use model.save(), or Table.save()"
            )
        file = io.BytesIO()
        np.savez(file, **read(self._binding))  # type: ignore[arg-type]
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """The inverse of `serialize`."""
        with np.load(io.BytesIO(string_value), allow_pickle=False) as state:
            write(self._binding, dict(state))
