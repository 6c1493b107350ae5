"""`Costs`: what work on rows costs on this machine, measured by a short benchmark of `tsps.Table`.

A lookup or an update of n ids with u distinct keys costs u times the cost of a key, and n - u times the cost of a
repeated id, whose row is in a cache by then. Both costs grow with the bytes of a row: they are measured for a narrow
and a wide row. The rows are at random places of tables larger than most caches.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig, Tiered
from tf_sparse_ps.table import Table

_SECONDS = 1.8  # for everything; the benchmark takes fewer turns on a slow machine
_FILL_SECONDS = 0.5  # per table
_NARROW, _WIDE = 8, 128
_ROWS = {_NARROW: 1 << 19, _WIDE: 1 << 16}
_KEYS = {_NARROW: 16_000, _WIDE: 6_000}
_REPEATS = 4  # ids per distinct key, in the measurements of repeated ids
_FILL = 1 << 15  # rows per step
_LEAST_TURNS, _MOST_TURNS = 3, 60
LARGE = 32 << 20  # glibc takes larger arrays from the system each time, and no cache holds them
_LARGE_TURNS = 3
# The table on disk: its memory holds a tenth of its rows.
_DISK_ROWS, _DISK_DIM, _DISK_MEMORY, _DISK_KEYS, _DISK_TURNS = 150_000, 32, 16 << 20, 2_000, 12
_OPERATIONS = ("call", "lookup", "repeat", "update", "merge")


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of work on this machine with all its cores, in nanoseconds: per key, and per byte of a row.

    Attributes:
      call_ns: A lookup and an update of few keys.
      lookup_key_ns, lookup_byte_ns: A lookup of a key that occurs once, and each byte of its output.
      repeat_key_ns, repeat_byte_ns: Each further lookup of a key.
      update_key_ns, update_byte_ns: An update of a key with one gradient, and each byte of its row and slots.
      merge_key_ns, merge_byte_ns: Each further gradient of a key, and each of its bytes.
      large_lookup_byte_ns, large_merge_byte_ns: In addition, each byte of a lookup's output or of an update's gradients
        that take more than `LARGE` bytes: they are in new pages and in no cache.
    """

    call_ns: float
    lookup_key_ns: float
    lookup_byte_ns: float
    repeat_key_ns: float
    repeat_byte_ns: float
    update_key_ns: float
    update_byte_ns: float
    merge_key_ns: float
    merge_byte_ns: float
    large_lookup_byte_ns: float
    large_merge_byte_ns: float


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Nanoseconds per key of a table's four operations, those of a call, and those per byte of large arrays."""

    call: float
    lookup: float
    repeat: float
    update: float
    merge: float
    large_lookup: float = 0.0
    large_merge: float = 0.0


def measure(folder: str) -> Costs:
    """Measures the costs, in at most two seconds.

    Args:
      folder: The folder of tables, such as the default of TFSPS_DIR. The tables of the benchmark take 120 MiB for the
        time of the call.

    Raises:
      NoSpaceError: The folder has no space for the tables.
    """
    deadline = time.perf_counter() + _SECONDS
    with _scratch(folder) as scratch:
        narrow = _measure(scratch / "narrow", _NARROW, time.perf_counter() + _SECONDS / 2)
        wide = _measure(scratch / "wide", _WIDE, deadline)

    def line(name: str, planes: int) -> tuple[float, float]:
        """Returns the nanoseconds per key and per byte, of an operation on `planes` planes."""
        low, high = getattr(narrow, name), getattr(wide, name)
        slope = max(0.0, (high - low) / (4 * planes * (_WIDE - _NARROW)))
        return max(0.0, low - slope * 4 * planes * _NARROW), slope

    lookup, repeat, update, merge = line("lookup", 1), line("repeat", 1), line("update", 2), line("merge", 1)
    return Costs(min(narrow.call, wide.call), *lookup, *repeat, *update, *merge, wide.large_lookup, wide.large_merge)


@contextmanager
def _scratch(folder: str) -> Iterator[Path]:
    """Makes a folder for groups of tables, and removes it."""
    base = Path(folder)
    while not base.exists():
        base = base.parent
    made = Path(tempfile.mkdtemp(prefix="tf_sparse_ps-plan-", dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _measure(group: Path, dim: int, deadline: float) -> _Measured:
    draw = np.random.default_rng(0)
    rule = optimizers.Adagrad(learning_rate=0.01)
    with Table.create(group / "rows", TableConfig("rows", dim, optimizer=rule, seed=1)) as table:
        rows, begin = 0, time.perf_counter()
        ones = np.full((_FILL, dim), 1e-3, np.float32)
        while rows < _ROWS[dim] and time.perf_counter() - begin < min(_FILL_SECONDS, (deadline - begin) / 2):
            table.apply_gradients(np.arange(rows, rows + _FILL), ones)
            rows += _FILL
        large = _large(table, draw, rows) if dim == _WIDE else (0.0, 0.0)
        times = _times(table, draw, rows, ones, deadline)
    n = _KEYS[dim]
    call, lookup, repeat, update, merge = (1e9 * min(times[name]) for name in _OPERATIONS)
    # A quarter of the repeated ids are first ones, which cost as much as others.
    first = 1 / _REPEATS
    half = call / 2
    once = {"lookup": max(0.0, lookup - half) / n, "update": max(0.0, update - half) / n}
    found = _Measured(
        call=call,
        lookup=once["lookup"],
        repeat=max(0.0, (repeat - half) / n - first * once["lookup"]) / (1 - first),
        update=once["update"],
        merge=max(0.0, (merge - half) / n - first * once["update"]) / (1 - first),
    )
    return dataclasses.replace(
        found,
        large_lookup=max(0.0, (large[0] - found.repeat) / (4 * dim)),
        large_merge=max(0.0, (large[1] - found.merge) / (4 * dim)),
    )


def _large(table: Table, draw: np.random.Generator, rows: int) -> tuple[float, float]:
    """Returns the nanoseconds per id of a lookup and of an update of few keys whose arrays are large."""
    dim = table.config.dim
    n = LARGE // (4 * dim) + 8_192
    ids = draw.choice(draw.choice(rows, 512, replace=False), n)
    gradients = np.full((n, dim), 1e-3, np.float32)
    lookups = [_seconds(functools.partial(table.lookup, ids)) for _ in range(_LARGE_TURNS)]
    updates = [_seconds(functools.partial(table.apply_gradients, ids, gradients)) for _ in range(_LARGE_TURNS)]
    return 1e9 * min(lookups) / n, 1e9 * min(updates) / n


def measure_disk(folder: str, shared: str) -> float:
    """Returns the rows per second that steps of a tiered table read from a disk, in at most a second or so.

    Args:
      folder: A folder on the disk. The table of the benchmark takes 80 MiB there for the time of the call.
      shared: The folder of tables.

    Raises:
      AccessError: Others can write to the folder, or its path has a symbolic link.
      NoSpaceError: A folder has no space for the table.
    """
    rule = optimizers.Adagrad(learning_rate=0.01)
    draw = np.random.default_rng(0)
    with _scratch(folder) as disk, _scratch(shared) as scratch:
        storage = Tiered(disk, _DISK_MEMORY)
        config = TableConfig("rows", _DISK_DIM, optimizer=rule, seed=1, storage=storage, max_rows=_DISK_ROWS)
        with Table.create(scratch / "disk" / "rows", config) as table:
            ones = np.full((_DISK_KEYS, _DISK_DIM), 1e-3, np.float32)
            for keys in np.array_split(np.arange(_DISK_ROWS), -(-_DISK_ROWS // _DISK_KEYS)):
                table.apply_gradients(keys, ones[: len(keys)])
            share = table.stats()["rows_on_disk"] / _DISK_ROWS
            times = []
            for _ in range(_DISK_TURNS):
                keys = draw.choice(_DISK_ROWS, _DISK_KEYS, replace=False)
                times.append(_seconds(functools.partial(_step, table, keys, ones)))
    return float(_DISK_KEYS * share / np.median(times))


def _times(
    table: Table, draw: np.random.Generator, rows: int, ones: npt.NDArray[np.float32], deadline: float
) -> dict[str, list[float]]:
    """Returns the seconds of each turn of each operation. The least of them are those without other programs."""
    n = _KEYS[table.config.dim]
    few = np.arange(8)
    times: dict[str, list[float]] = {name: [] for name in _OPERATIONS}
    turns = 0
    while turns < _LEAST_TURNS or (turns < _MOST_TURNS and time.perf_counter() < deadline):
        keys = draw.choice(rows, n, replace=False)
        repeated = draw.permutation(np.repeat(keys[: n // _REPEATS], _REPEATS))
        times["call"].append(_seconds(lambda: _step(table, few, ones[:8])))
        for name, ids in (("lookup", keys), ("repeat", repeated)):
            times[name].append(_seconds(functools.partial(table.lookup, ids)))
        for name, ids in (("update", keys), ("merge", repeated)):
            times[name].append(_seconds(functools.partial(table.apply_gradients, ids, ones[:n])))
        turns += 1
    return times


def _step(table: Table, keys: npt.NDArray[np.int64], gradients: npt.NDArray[np.float32]) -> None:
    table.lookup(keys)
    table.apply_gradients(keys, gradients)


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
