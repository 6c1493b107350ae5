"""Reads and writes the contents of a table as arrays: the matrix of a bounded table, and the state of any table.

The contents of a sharded table are those of all nodes. All ranks read or write them together. In a save, rank 0 asks
the other ranks for them (`saving.py`).

The state of a table is a dict of arrays, in memory or in a file: `keys` int64[n]; `rows` float32[n, dim]; `slot_0`, ...
float32[n, dim], or float32[n, 1] if the rule keeps one float per row; and `meta`, JSON in uint8. Keys that are not
among `keys` have initial values, so `meta` contains the initializer.
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
from tf_sparse_ps.config import initializers
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
_READ = (1, 2)  # the versions that can be read; version 1 does not record which optimizer made the slots
_CHUNK_ROWS = 1 << 18
_BLOCK_BYTES = 8 << 20
_COMPARED = 256  # keys and rows at each end of a file that ranks compare, to see that they load equal files
_MAX_CHECKPOINT_BYTES = 2**31 - 2**20


def matrix(binding: TableBinding, caller: str) -> npt.NDArray[np.float32]:
    """Returns all rows of a bounded table, float32[key_limit, dim]. If the table is sharded, all ranks call it.

    Args:
      binding: The table.
      caller: The name of the public method, for messages.

    Raises:
      UnsupportedError: The table is unbounded.
    """
    limit = binding.config.key_limit
    if limit is None:
        raise UnsupportedError(
            f"{caller}: the table of layer {binding.config.name!r} has an unbounded vocabulary, so it is no matrix. "
            "To save its keys, rows and slots, use model.save(), model.save_weights() or tsps.Table. To look up rows, "
            "call the layer. To regularize them, use its activity_regularizer"
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
        result[keys] = tf.cast(tf.cast(initial, binding.config.dtype), tf.float32).numpy()  # rounded as in the table
    return result


def on_this_machine(binding: TableBinding) -> tf.Tensor:
    """Returns this machine's rows of a table, float32[n, dim] in any order, for histograms. Any rank may call it."""
    with binding.reader().scan(slots=False) as content:
        return tf.concat([tf.zeros([0, binding.config.dim]), *(block.rows for block in content)], 0)


def check_matrix(binding: TableBinding, value: Any) -> npt.NDArray[np.float32]:
    """Converts a matrix to float32[key_limit, dim].

    Raises:
      ValueError: The shape is wrong. The message is the one of Keras.
      UnsupportedError: The table is unbounded.
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
    """Sets all rows of a bounded table; present rows keep their slots. All ranks set equal rows of a sharded table."""
    array = check_matrix(binding, value)
    with collective_calls.loading(binding, "setting the weights", {"values": collective_calls.digest(array)}):
        binding.assign(np.arange(len(array), dtype=np.int64), array, every=True)


def read(binding: TableBinding, at_most: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """Returns the state of a table. If the table is sharded, all ranks call it, and the state is that of all nodes.

    Args:
      binding: The table.
      at_most: The largest size of the state in bytes. None: no limit.

    Raises:
      UnsupportedError: The state has more than `at_most` bytes.
    """
    with saving.content(binding, "reading", slots=True) as content:
        wanted = _arrays(binding, content)
        size = sum(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in wanted.values())
        if at_most is not None and size > at_most:
            raise UnsupportedError(
                f"the table of layer {binding.config.name!r} has {size} bytes, too many for a tf.train.Checkpoint. Use "
                "model.save() or model.save_weights()"
            )
        state: dict[str, npt.NDArray[Any]] = {name: np.empty(shape, dtype) for name, (shape, dtype) in wanted.items()}
        _fill(state, content, binding)
    state["meta"] = _meta(binding, content)
    return state


def save(binding: TableBinding, store: Any, prefix: str) -> None:
    """Writes the state of a table into a Keras store, block by block if the store is an HDF5 file.

    Args:
      binding: The table.
      store: The store that Keras passes to `save_own_variables`.
      prefix: The prefix of the names in the store.
    """
    with saving.content(binding, "saving", slots=True) as content:
        store[f"{prefix}meta"] = _meta(binding, content)
        wanted = _arrays(binding, content)
        arrays = _keras_stores.new_arrays(store, {f"{prefix}{name}": spec for name, spec in wanted.items()})
        if arrays is not None:
            _fill({name: arrays[f"{prefix}{name}"] for name in wanted}, content, binding)
            return
        copies = {name: np.empty(shape, dtype) for name, (shape, dtype) in wanted.items()}
        _fill(copies, content, binding)
        for name, array in copies.items():
            store[f"{prefix}{name}"] = array


def _arrays(binding: TableBinding, content: Content) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Returns the shape and type of each array of a table's state, except `meta`."""
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


def _shown(content: Content, text: str) -> Iterator[Block]:
    """Yields the blocks of a table, and shows a progress bar with this text."""
    with bar(len(content), text) as progress:
        for block in content:
            yield block
            progress.update(len(block.keys))


def _meta(binding: TableBinding, content: Content) -> npt.NDArray[np.uint8]:
    meta = {
        "version": _VERSION,
        "dim": binding.config.dim,
        "key_limit": binding.config.key_limit,
        "optimizer": content.optimizer["kind"],
        "slot_init": [_shortest(value) for value in content.optimizer["slot_init"]],
        "initializer": dict(binding.reader().core_initializer()),
        "trained_by": list(content.trained_by),
    }
    return np.frombuffer(json.dumps(meta).encode(), np.uint8)


def write(binding: TableBinding, state: Mapping[str, Any]) -> None:
    """Sets a table to a state that `read` returned, and erases all other keys. Every rank calls it; the leaders write.

    Each node keeps the keys of a sharded table that it owns. A table without an optimizer is bound to the optimizer of
    the saved slots. A table with another optimizer gets the rows without the slots.

    Args:
      binding: The table.
      state: The state. Its arrays may be in a file, from which slices are read.

    Raises:
      InvalidArgumentError: The state has another version, row width or key limit.
    """
    meta = bytes(np.asarray(state["meta"]))
    facts = {"meta": meta.decode(), "number of keys": str(len(state["keys"]))}
    facts |= {name: _ends(state[name]) for name in ("keys", "rows")}
    with collective_calls.loading(binding, "loading", facts):
        _write(binding, state, json.loads(meta), number_of(*facts.items()))


def _ends(array: Any) -> str:
    """Describes both ends of an array, which is in memory or in a file, for comparison."""
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
    """Sets a table to stored rows and slots, and erases all other keys. Every rank calls it; the leaders write.

    A table without an optimizer is bound to the optimizer of the stored slots. A table with another optimizer gets the
    rows without the slots.

    Args:
      binding: The table.
      meta: Facts about the stored table: its dim, key_limit, optimizer, slot_init, initializer and, if it is known,
        trained_by.
      widths: The width of each stored slot. Empty: no slots are stored.
      blocks: A function that returns the stored blocks. Its argument is whether the blocks contain the slots.
      what: A number that stands for the stored rows and slots, from `number_of`.

    Raises:
      InvalidArgumentError: The rows have another width, or the table has another key limit.
    """
    config = binding.config
    expected = {"dim": config.dim, "key_limit": config.key_limit}
    stored_shape = {name: meta[name] for name in expected}
    if stored_shape != expected:
        raise InvalidArgumentError(f"layer {config.name!r} cannot load rows of {stored_shape}. Expected: {expected}")
    reset: tuple[tuple[int, float], ...] = ()  # width and initial value of each slot that is reset
    carried = bool(widths)
    if carried:
        stored = (meta["optimizer"], tuple(float(np.float32(value)) for value in meta["slot_init"]))
        if binding.optimizer is None:
            binding.bind_optimizer(optimizers.of_kind(meta["optimizer"], meta["slot_init"]))
        elif binding.optimizer.slot_identity != stored:
            warnings.warn(
                f"layer {config.name!r}: the saved slots are of {stored}, but the table is trained by "
                f"{binding.optimizer}. Rows are loaded, slots are reset. To keep the saved slots, train with the "
                "optimizer that made them",
                stacklevel=6,
            )
            slot_widths = _table.slot_widths(binding.optimizer.kind, config.dim)
            reset, carried = tuple(zip(slot_widths, binding.optimizer.slot_init, strict=True)), False
    new_blocks = _with_slots(blocks(carried), reset)
    if initializers.deciding(meta["initializer"]) != initializers.deciding(binding.reader().core_initializer()):
        # With all rows, a table could exceed its bound, and no key would be left to be admitted.
        may_lack_rows = config.max_rows is not None or config.admission is not None or config.eviction is not None
        if config.key_limit is None or may_lack_rows:
            warnings.warn(
                f"layer {config.name!r}: keys that were never trained read initial values of this table, not of the "
                "saved one. To keep the saved table's initial values, load the whole model (keras.models.load_model)",
                stacklevel=6,
            )
        else:
            slots = reset or tuple(zip(widths, meta["slot_init"], strict=bool(widths)))
            new_blocks = _completed(new_blocks, meta, config.key_limit, slots)
    rule = binding.optimizer
    binding.replace(new_blocks, what, whole=carried or bool(reset) or rule is None or not rule.slots)
    if carried:
        binding.load_trained_by(*meta.get("trained_by", (0, 0)))
    elif reset:
        binding.set_trained_by(0, 0)


def _blocks(state: Mapping[str, Any], slots: Sequence[Any], carried: bool, config: TableConfig) -> Iterator[Block]:
    """Yields a stored state in blocks.

    Args:
      state: The keys and rows.
      slots: The array of each slot.
      carried: Whether the blocks contain the slots.
      config: The configuration of the table.
    """
    n = len(state["keys"])
    size = max(1, _BLOCK_BYTES // (8 + 4 * config.dim * (1 + len(slots))))
    with bar(n, f"load {config.name}") as progress:
        for start in range(0, n, size):
            part = slice(start, start + size)
            keys = np.asarray(state["keys"][part], np.int64)
            values = tuple(np.asarray(slot[part], np.float32) for slot in slots) if carried else ()
            yield Block(keys, np.asarray(state["rows"][part], np.float32), values, {})
            progress.update(len(keys))


def _with_slots(blocks: Iterator[Block], reset: Sequence[tuple[int, float]]) -> Iterator[Block]:
    """Adds slots with initial values to blocks. `reset`: the width and value of each slot, or nothing to add."""
    for block in blocks:
        yield block._replace(slots=_initial_slots(len(block.keys), reset)) if reset else block


def _completed(
    blocks: Iterator[Block], meta: Mapping[str, Any], limit: int, slots: Sequence[tuple[int, float]]
) -> Iterator[Block]:
    """Adds the initial rows of the saved table for its absent keys. `slots`: the width and value of their slots."""
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
    """Returns the slots of n new rows. `slots`: the width and value of each slot."""
    return tuple(np.full((n, width), value, np.float32) for width, value in slots)


def _shortest(value: float) -> float:
    """Returns the shortest number that is the same float32: 0.1, not 0.10000000149011612."""
    return float(str(np.float32(value)))


class CheckpointState(tf.train.experimental.PythonState):
    """The state of a table, in one string, as part of a `tf.train.Checkpoint` and of Keras 2's save_weights.

    It is no part of a SavedModel, which contains the rows as an asset (`anchor.py`).
    """

    def __init__(self, binding: TableBinding) -> None:
        self._binding = binding

    def serialize(self) -> bytes:
        """Returns the state of the table as the bytes of an .npz file."""
        saving.claim()
        file = io.BytesIO()
        np.savez(file, **read(self._binding, at_most=_MAX_CHECKPOINT_BYTES))  # type: ignore[arg-type]
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Sets the table to the state that `serialize` returned."""
        with np.load(io.BytesIO(string_value), allow_pickle=False) as state:
            write(self._binding, dict(state))
