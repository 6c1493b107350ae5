"""The groups that are mutated, and what a reader and the next writer do with a group. Only its files decide this."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.mutate import layout
from tf_sparse_ps import optimizers
from tf_sparse_ps import table as store
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.errors import TableError
from tf_sparse_ps.table import Table

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# A table with a long index, slots and returned rows; a bounded table of one segment; one without an optimizer.
CONFIGS = {
    "wide": TableConfig("wide", 8, seed=1, optimizer=optimizers.Adagrad(learning_rate=0.5)),
    "small": TableConfig("small", 3, seed=1, key_limit=500, max_rows=400, optimizer=optimizers.Adam(learning_rate=0.5)),
    "bare": TableConfig("bare", 5, seed=1, initializer="zeros"),
}
# The table that a sparse-parameter file is written from, and loaded into.
_FILE_CONFIG = dataclasses.replace(
    CONFIGS["wide"], metadata=(MetadataPlane("count"), MetadataPlane("last_used", "int64"))
)
DIMS = {name: config.dim for name, config in CONFIGS.items()}
WIDE, ERASED, SMALL, BARE = 9000, 700, 200, 50  # numbers of keys
STATES = ("closed", "killed in a step", "killed in an erase", "killed in a split")


def spread(first: int, n: int) -> Ints:
    """Returns keys `first`, `first` + 1, ... spread over all of int64."""
    numbers = np.arange(first, first + n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return numbers.view(np.int64)


def rows_of(keys: Ints, dim: int, salt: int) -> Floats:
    """Returns values that differ between keys, elements and salts."""
    mixed = (keys[:, None] % 1009) * 31 + np.arange(dim) * 7 + salt
    return (mixed % 2003 / 2003 - 0.5).astype(np.float32)


@contextlib.contextmanager
def opened(group: Path, mode: str) -> Iterator[dict[str, Table]]:
    """Opens the group's tables, by name, and closes them afterwards."""
    tables: dict[str, Table] = {}
    try:
        for name, config in CONFIGS.items():
            if mode == "r+":
                tables[name] = Table.open(group / name, "r+", config)
            else:
                tables[name] = Table.open(group / name)
        yield tables
    finally:
        for table in tables.values():
            table.close()


def step(tables: dict[str, Table], keys: dict[str, Ints], salt: int) -> None:
    """Makes a step whose gradients follow from keys and `salt`."""
    store.step({tables[name]: (some, rows_of(some, DIMS[name], salt)) for name, some in keys.items()})


def make_group(group: Path, state: str) -> None:
    """Makes the group as its writer leaves it, or as a writer that was killed just before publishing a mutation."""
    tables = {name: Table.create(group / name, config) for name, config in CONFIGS.items()}
    wide = spread(0, WIDE + ERASED)
    for start in range(0, len(wide), 1000):
        step(tables, {"wide": wide[start : start + 1000]}, start)
    tables["wide"].erase(wide[:ERASED])
    tables["bare"].assign(spread(0, BARE), rows_of(spread(0, BARE), DIMS["bare"], 3))
    step(tables, {"small": np.arange(SMALL), "wide": wide[ERASED : ERASED + 300]}, 5)
    if state == "killed in a step":
        some = np.concatenate([wide[ERASED : ERASED + 300], spread(WIDE + ERASED, 100)])
        step(tables, {"wide": some, "small": np.arange(SMALL - 20, SMALL + 20)}, 6)
    elif state == "killed in an erase":
        tables["wide"].erase(wide[ERASED : ERASED + 200])
    elif state == "killed in a split":
        _fail_after_a_split(tables["wide"])
    for table in tables.values():
        table.close()
    if state != "closed":
        kinds = _unpublish(group)
        expected = {"killed in a step": [1, 2, 1, 2], "killed in an erase": [3], "killed in a split": [4]}[state]
        assert kinds == expected, kinds


def _fail_after_a_split(wide: Table) -> None:
    """Makes a split, which is a separate mutation, and then a mutation that finds no space for further splits."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = os.path.getsize(os.path.join(wide.path, "segments"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + layout.SEGMENT, limits[1]))
    try:
        with pytest.raises(TableError, match="/segments: File too large"):
            wide.assign(spread(10**6, 30_000), np.zeros((30_000, DIMS["wide"]), np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _unpublish(group: Path) -> list[int]:
    """Takes back the last store of the last mutation. Its undo log and the previous commit record still exist.

    Returns:
      The kinds of the undo log's records.
    """
    with open(group / "group", "r+b") as file:
        file.seek(layout.LIVE)
        (sequence,) = struct.unpack("<Q", file.read(8))
        file.seek(layout.LIVE)
        file.write(struct.pack("<Q", sequence - 1))
    data = (group / "undo").read_bytes()
    (n,) = struct.unpack_from("<I", data, 24)
    at, kinds = layout.UNDO_RECORDS, []
    for _ in range(n):
        kind, _, _, size = struct.unpack_from("<IIQQ", data, at)
        kinds.append(kind)
        at += size
    return kinds


@dataclasses.dataclass
class Seen:
    """The result of a phase.

    Attributes:
      error: The text of an exception of the store; "": none.
      problems: The problems that `Table.verify` reported.
      content: Everything that was read, always in the same order.
    """

    error: str = ""
    problems: list[str] = dataclasses.field(default_factory=list)
    content: list[Any] = dataclasses.field(default_factory=list)

    def same_content(self, other: Seen) -> bool:
        return len(self.content) == len(other.content) and all(
            np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b
            for a, b in zip(self.content, other.content, strict=True)
        )


def read(group: Path) -> Seen:
    """Reads as a reader does: reports, all keys with rows and slots, lookups of present and absent keys."""
    seen = Seen()
    try:
        with opened(group, "r") as tables:
            look(tables, seen)
            for name, table in tables.items():
                some = np.arange(0, 450, 9) if name == "small" else spread(ERASED - 40, 120)
                seen.content.append(table.lookup(some))
    except TableError as error:
        seen.error = f"{type(error).__name__}: {error}"
    return seen


def look(tables: dict[str, Table], seen: Seen) -> None:
    """Reads reports of all tables, and their contents."""
    for table in tables.values():
        seen.problems += table.verify().problems
        keys = np.sort(table.keys())
        present, rows, slots = table.entries(keys)
        seen.content += table.metadata(keys).values()
        stats = table.stats()
        seen.content += [keys, present, rows, *slots, stats["rows"], stats["step"], str(stats["optimizer"])]


def write(group: Path) -> Seen:
    """Writes as the next writer does: trains present and new keys, grows the index, erases and assigns rows, and
    replaces an optimizer. Then reads everything as a reader does.
    """
    seen = Seen()
    try:
        with opened(group, "r+") as tables:
            old = spread(ERASED + 100, 400)
            step(tables, {"wide": old, "small": np.arange(60, 160)}, 7)
            for start in range(0, 4000, 2000):  # uses more than the returned rows, and splits
                step(tables, {"wide": spread(20_000 + start, 2000)}, 8)
            step(tables, {"small": np.arange(SMALL + 50, SMALL + 100), "wide": old}, 9)
            bare = spread(BARE - 20, 60)
            tables["bare"].assign(bare, rows_of(bare, DIMS["bare"], 10))
            tables["wide"].erase(spread(ERASED + 200, 300))
            tables["small"].bind_optimizer(optimizers.Adagrad(learning_rate=0.5), replace=True)
            step(tables, {"small": np.arange(0, 40)}, 11)
            seen.problems += [problem for table in tables.values() for problem in table.verify().problems]
        with opened(group, "r") as tables:
            look(tables, seen)
    except TableError as error:
        seen.error = f"{type(error).__name__}: {error}"
    return seen


def make_file(path: Path) -> None:
    """Writes a sparse-parameter file of three blocks, with slots and metadata."""
    folder = path.with_suffix(".group")
    table = Table.create(folder / "wide", _FILE_CONFIG)
    keys = spread(0, WIDE)
    metadata = {"count": (keys[:, None] % 1009).astype(np.uint32), "last_used": keys[:, None] % 2003}
    table.assign(keys, np.zeros((WIDE, DIMS["wide"]), np.float32), metadata=metadata)
    table.apply_gradients(keys, rows_of(keys, DIMS["wide"], 1))
    table.export_parameter_file(path, progress=False)
    table.close()
    shutil.rmtree(folder)


def load(path: Path) -> Seen:
    """Returns the contents of a new table into which the file was loaded."""
    seen = Seen()
    folder = path.with_suffix(".group")
    try:
        table = Table.create(folder / "wide", _FILE_CONFIG)
        try:
            table.load_parameter_file(path, progress=False)
            look({"wide": table}, seen)
        finally:
            table.close()
    except TableError as error:
        seen.error = f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return seen
