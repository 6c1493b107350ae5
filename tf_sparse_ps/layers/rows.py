"""A table's content in and out of arrays: the whole matrix of a bounded table, and everything of any table.

Of a table that is spread over nodes it is that of all of them: all ranks then read or write it together, except in a
save, in which rank 0 asks for it (`saving.py`).

Everything is a dict of arrays, in memory or in a file: `keys` int64[n], `rows` float32[n, dim], `slot_0`, ...
float32[n, dim] (or [n, 1], of a rule that keeps one float per row), and `meta`, JSON in uint8. Keys that are not there
have initial values, so `meta` says which.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps import _table, optimizers
from tf_sparse_ps._compat import _keras_stores
from tf_sparse_ps.errors import InvalidArgumentError, UnsupportedError
from tf_sparse_ps.job.table_binding import number_of
from tf_sparse_ps.layers import collective_calls, saving
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block

if TYPE_CHECKING:
    from tf_sparse_ps.config.table_config import TableConfig
    from tf_sparse_ps.job.table_binding import TableBinding
    from tf_sparse_ps.table.parameter_files import Content

_VERSION = 2
_READ = (1, 2)  # versions; 1 does not say which optimizer made the slots
_CHUNK_ROWS = 1 << 18
_BLOCK_BYTES = 8 << 20
_COMPARED = 256  # keys and rows at each end of a file, by which ranks see that they load the same one
_MAX_CHECKPOINT_BYTES = 2**31 - 2**20


def matrix(binding: TableBinding, caller: str) -> npt.NDArray[np.float32]:
    """All rows of a bounded table, float32[key_limit, dim]. Of a sharded one all ranks ask for them.

    Raises:
      UnsupportedError: The table is unbounded; names `caller`.
    """
    limit = binding.config.key_limit
    if limit is None:
        raise UnsupportedError(
            f"{caller}: the table of layer {binding.config.name!r} has an unbounded vocabulary, which is no matrix. "
            "model.save(), model.save_weights() and tsps.Table carry keys, rows and slots. Calling the layer looks "
            "rows up, and its activity_regularizer regularizes them"
        )
    reader = binding.reader()
    result = np.empty((limit, binding.config.dim), np.float32)
    absent = np.ones(limit, np.bool_)
    with saving.content(binding, caller, slots=False) as content:
        for block in _shown(content, f"read {binding.config.name}"):
            result[block.keys] = block.rows
            absent[block.keys] = False
    for start in range(0, limit, _CHUNK_ROWS):
        keys = start + np.flatnonzero(absent[start : start + _CHUNK_ROWS])
        initial = _table.initial_rows(reader.core_initializer(), keys, binding.config.dim)
        result[keys] = tf.cast(tf.cast(initial, binding.config.dtype), tf.float32).numpy()  # as the table stores them
    return result


def on_this_machine(binding: TableBinding) -> tf.Tensor:
    """The rows that a table has here, in any order: float32[n, dim]. For pictures; no other rank is asked."""
    with binding.reader().scan(slots=False) as content:
        return tf.concat([tf.zeros([0, binding.config.dim]), *(block.rows for block in content)], 0)


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
    """Sets all rows of a bounded table; slots of rows that are there stay. Of a sharded one all ranks set the same."""
    array = check_matrix(binding, value)
    with collective_calls.loading(binding, "setting the weights", {"values": collective_calls.digest(array)}):
        binding.assign(np.arange(len(array), dtype=np.int64), array, every=True)


def read(binding: TableBinding, at_most: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """Everything of a table; of a sharded one that of all nodes, which then all ranks ask for.

    Raises:
      UnsupportedError: It has more than `at_most` bytes.
    """
    with saving.content(binding, "reading", slots=True) as content:
        wanted = _arrays(binding, content)
        size = sum(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in wanted.values())
        if at_most is not None and size > at_most:
            raise UnsupportedError(
                f"the table of layer {binding.config.name!r} has {size} bytes, too many for a tf.train.Checkpoint; use "
                "model.save() or model.save_weights()"
            )
        state: dict[str, npt.NDArray[Any]] = {name: np.empty(shape, dtype) for name, (shape, dtype) in wanted.items()}
        _fill(state, content, binding)
    state["meta"] = _meta(binding, content)
    return state


def save(binding: TableBinding, store: Any, prefix: str) -> None:
    """Writes everything of a table into a store of Keras's, block by block where that is an HDF5 file.

    Args:
      store: What `save_own_variables` is given.
      prefix: Of the names.
    """
    with saving.content(binding, "saving", slots=True) as content:
        store[f"{prefix}meta"] = _meta(binding, content)
        wanted = _arrays(binding, content)
        arrays = _keras_stores.new_arrays(store, {f"{prefix}{name}": one for name, one in wanted.items()})
        if arrays is not None:
            _fill({name: arrays[f"{prefix}{name}"] for name in wanted}, content, binding)
            return
        whole = {name: np.empty(shape, dtype) for name, (shape, dtype) in wanted.items()}
        _fill(whole, content, binding)
        for name, array in whole.items():
            store[f"{prefix}{name}"] = array


def _arrays(binding: TableBinding, content: Content) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and type of the arrays that a table's content is, but for `meta`."""
    n, dim = len(content), binding.config.dim
    widths = _table.slot_widths(content.optimizer["kind"], dim)
    arrays: dict[str, tuple[tuple[int, ...], Any]] = {"keys": ((n,), np.int64), "rows": ((n, dim), np.float32)}
    return arrays | {f"slot_{index}": ((n, width), np.float32) for index, width in enumerate(widths)}


def _fill(arrays: Mapping[str, Any], content: Content, binding: TableBinding) -> None:
    end = 0
    for block in _shown(content, f"save {binding.config.name}"):
        part = slice(end, end + len(block.keys))
        arrays["keys"][part], arrays["rows"][part] = block.keys, block.rows
        for index, slot in enumerate(block.slots):
            arrays[f"slot_{index}"][part] = slot
        end = part.stop


def _shown(content: Content, what: str) -> Iterator[Block]:
    """The blocks, with a progress bar."""
    with bar(len(content), what) as shown:
        for block in content:
            yield block
            shown.update(len(block.keys))


def _meta(binding: TableBinding, content: Content) -> npt.NDArray[np.uint8]:
    meta = {
        "version": _VERSION,
        "dim": binding.config.dim,
        "key_limit": binding.config.key_limit,
        "optimizer": content.optimizer["kind"],
        "slot_init": [_shortest(value) for value in content.optimizer["slot_init"]],
        "initializer": _initializer(binding),
        "trained_by": list(content.trained_by),
    }
    return np.frombuffer(json.dumps(meta).encode(), np.uint8)


def write(binding: TableBinding, state: Mapping[str, Any]) -> None:
    """Makes the table what `read` returned: other keys are erased. Every rank calls it; the leaders act.

    Of a sharded table each node keeps the keys that it owns.

    A table without an optimizer gets the one the state has slots of; a table with another one gets the rows alone.

    Args:
      state: Arrays, or what is read from a file by slices of them.

    Raises:
      InvalidArgumentError: The state is of another version, width or key limit.
    """
    meta = bytes(np.asarray(state["meta"]))
    facts = {"meta": meta.decode(), "number of keys": str(len(state["keys"]))}
    facts |= {name: _ends(state[name]) for name in ("keys", "rows")}
    with collective_calls.loading(binding, "loading", facts):
        _write(binding, state, json.loads(meta), number_of(*facts.items()))


def _ends(array: Any) -> str:
    """Tells the ends of an array, in memory or in a file, from others."""
    return collective_calls.digest(np.concatenate([array[:_COMPARED], array[max(0, len(array) - _COMPARED) :]]))


def _write(binding: TableBinding, state: Mapping[str, Any], meta: Mapping[str, Any], what: int) -> None:
    if meta["version"] not in _READ:
        raise InvalidArgumentError(
            f"layer {binding.config.name!r} cannot load saved rows of version {meta['version']}. This version of "
            f"tf_sparse_ps reads versions {_READ[0]} to {_READ[-1]}. Load the file with the version that wrote it, or "
            "with a later one"
        )
    slots = [state[f"slot_{index}"] for index in range(sum(name.startswith("slot_") for name in state))]
    widths = [slot.shape[1] for slot in slots]
    replace(binding, meta, widths, lambda carried: _blocks(state, slots, carried, binding.config), what)


def replace(
    binding: TableBinding,
    meta: Mapping[str, Any],
    widths: Sequence[int],
    blocks: Callable[[bool], Iterator[Block]],
    what: int,
) -> None:
    """Makes the table what is stored: other keys are erased. Every rank calls it; the leaders act.

    A table without an optimizer gets the one that is stored; a table with another one gets the rows alone.

    Args:
      binding: Of the table.
      meta: Of what is stored: its dim, key_limit, optimizer, slot_init, initializer and, if it is known, trained_by.
      widths: Of the slots that are stored, if there are some.
      blocks: Returns what is stored, with slots or without.
      what: Stands for what is stored, from `number_of`.

    Raises:
      InvalidArgumentError: The rows have another width, or another key limit.
    """
    config = binding.config
    expected = {"dim": config.dim, "key_limit": config.key_limit}
    found = {name: meta[name] for name in expected}
    if found != expected:
        raise InvalidArgumentError(f"layer {config.name!r} cannot load rows of {found}. Expected: {expected}")
    anew: tuple[tuple[int, float], ...] = ()  # width and initial value of slots that begin again
    carried = bool(widths)
    if carried:
        stored = (meta["optimizer"], tuple(float(np.float32(value)) for value in meta["slot_init"]))
        if binding.optimizer is None:
            binding.bind_optimizer(optimizers.of_kind(meta["optimizer"], meta["slot_init"]))
        elif binding.optimizer.slot_identity != stored:
            warnings.warn(
                f"layer {config.name!r}: the saved slots are of {stored}, the table is trained by "
                f"{binding.optimizer}; rows are loaded, slots start anew",
                stacklevel=6,
            )
            own = _table.slot_widths(binding.optimizer.kind, config.dim)
            anew, carried = tuple(zip(own, binding.optimizer.slot_init, strict=True)), False
    found_blocks = _with_slots(blocks(carried), anew)
    if not _same_values(meta["initializer"], _initializer(binding)):
        if config.key_limit is None:
            warnings.warn(
                f"layer {config.name!r}: keys that were never trained read initial values of this table, not of the "
                "saved one; load the whole model (keras.models.load_model) to keep them",
                stacklevel=6,
            )
        else:
            fresh = anew or tuple(zip(widths, meta["slot_init"], strict=bool(widths)))
            found_blocks = _completed(found_blocks, meta, config.key_limit, fresh)
    rule = binding.optimizer
    binding.replace(found_blocks, what, whole=carried or bool(anew) or rule is None or not rule.slots)
    if carried:
        binding.load_trained_by(*meta.get("trained_by", (0, 0)))
    elif anew:
        binding.set_trained_by(0, 0)


def _blocks(state: Mapping[str, Any], slots: Sequence[Any], carried: bool, config: TableConfig) -> Iterator[Block]:
    """What is stored in arrays, in blocks.

    Args:
      state: Keys and rows.
      slots: Arrays of the slots, or none.
      carried: Whether the blocks are to have them.
      config: Of the table.
    """
    n = len(state["keys"])
    size = max(1, _BLOCK_BYTES // (8 + 4 * config.dim * (1 + len(slots))))
    with bar(n, f"load {config.name}") as shown:
        for start in range(0, n, size):
            part = slice(start, start + size)
            keys = np.asarray(state["keys"][part], np.int64)
            values = tuple(np.asarray(slot[part], np.float32) for slot in slots) if carried else ()
            yield Block(keys, np.asarray(state["rows"][part], np.float32), values, {})
            shown.update(len(keys))


def _with_slots(blocks: Iterator[Block], anew: Sequence[tuple[int, float]]) -> Iterator[Block]:
    """Blocks with slots that begin again, of these widths and values, if there are some."""
    for block in blocks:
        yield block._replace(slots=_initial_slots(len(block.keys), anew)) if anew else block


def _completed(
    blocks: Iterator[Block], meta: Mapping[str, Any], limit: int, slots: Sequence[tuple[int, float]]
) -> Iterator[Block]:
    """Adds the saved table's initial rows for the keys it did not hold. `slots`: width and value of theirs."""
    absent = np.ones(limit, np.bool_)
    for block in blocks:
        absent[block.keys] = False
        yield block
    size = max(1, _BLOCK_BYTES // (4 * meta["dim"]))
    for start in range(0, limit, size):
        keys = start + np.flatnonzero(absent[start : start + size])
        yield Block(
            keys, _table.initial_rows(meta["initializer"], keys, meta["dim"]), _initial_slots(len(keys), slots), {}
        )


def _initial_slots(n: int, slots: Sequence[tuple[int, float]]) -> tuple[npt.NDArray[np.float32], ...]:
    """What n new rows have in slots of these widths and values."""
    return tuple(np.full((n, width), value, np.float32) for width, value in slots)


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
        file = io.BytesIO()
        np.savez(file, **read(self._binding, at_most=_MAX_CHECKPOINT_BYTES))  # type: ignore[arg-type]
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """The inverse of `serialize`."""
        with np.load(io.BytesIO(string_value), allow_pickle=False) as state:
            write(self._binding, dict(state))
