"""Writes the files of a served table: a base with all rows, and layers with what has changed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tf_sparse_ps import _table
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.progress import bar
from tf_sparse_ps.table.scan import Block

ROWS = ("float32", "bfloat16", "float16", "int8")
ABSENT = ("initial", "zeros")
_ROWS_AT_ONCE = 1 << 16
_ZEROS = {"kind": "zeros", "a": 0.0, "b": 0.0, "seed": 0, "salt": 0}


class TableFacts(NamedTuple):
    """The facts about a table that are in its files."""

    name: str
    """The name of the table in messages."""
    uuid: str
    """The identity of the table, 32 hexadecimal digits."""
    dim: int
    """The floats of a row."""
    dtype: str
    """The type in which the table keeps its rows."""
    key_limit: int
    """Keys are from 0 to this number - 1; 0: any int64 is a key."""
    initializer: dict[str, Any]
    """What a key without a row reads, in the core's form."""
    rows: str
    """One of `ROWS`."""
    hash_seed: int
    """The same in all files of a version's table."""

    def for_core(self, step: int, sequence: tuple[int, int]) -> dict[str, Any]:
        """Returns the facts of a file. `sequence`: the first and the last export whose changes it has."""
        return {
            "dim": self.dim,
            "rows": self.rows,
            "dtype": self.dtype,
            "table_uuid": self.uuid,
            "hash_seed": self.hash_seed,
            "first_sequence": sequence[0],
            "last_sequence": sequence[1],
            "step": step,
            "key_limit": self.key_limit,
            "initializer": self.initializer,
        }


def check_options(rows: str | None, absent: str) -> None:
    """Raises InvalidArgumentError unless `rows` is one of `ROWS` or None, and `absent` is one of `ABSENT`."""
    if rows is not None and rows not in ROWS:
        raise InvalidArgumentError(f"`rows` must be one of {ROWS}, or None. Received: {rows!r}")
    if absent not in ABSENT:
        raise InvalidArgumentError(f"`absent` must be one of {ABSENT}. Received: {absent!r}")


def initializer_for(absent: str, initializer: dict[str, Any]) -> dict[str, Any]:
    """Returns what keys without a row read, in the core's form."""
    return initializer if absent == "initial" else dict(_ZEROS)


def new_hash_seed() -> int:
    """Draws the seed of the hashes of a new base. Who does not know it cannot choose ids that collide."""
    return secrets.randbits(64)


def facts_of(
    table: Any, *, rows: str | None = None, absent: str = "initial", hash_seed: int | None = None
) -> TableFacts:
    """Returns the facts of a table.

    Args:
      table: A `tsps.Table`.
      rows: How to store rows, one of `ROWS`. None: as the table does.
      absent: What keys without a row read, one of `ABSENT`.
      hash_seed: The seed of the hashes; None: it is drawn.

    Raises:
      InvalidArgumentError: An argument has another value.
    """
    check_options(rows, absent)
    if rows is None:
        rows = table.config.dtype
    return TableFacts(
        name=table.config.name,
        uuid=table.uuid,
        dim=table.config.dim,
        dtype=table.config.dtype,
        key_limit=table.config.key_limit or 0,
        initializer=initializer_for(absent, table.core_initializer()),
        rows=rows,
        hash_seed=new_hash_seed() if hash_seed is None else hash_seed,
    )


def _rows_of(facts: TableFacts, most_keys: int, folder: Path) -> Any:
    """Returns an empty `_table.ServingRows`, which sorts rows. It needs at most 64 MiB, and temporary data on the disk.

    Args:
      facts: The table.
      most_keys: About how many keys there will be.
      folder: A folder for temporary data.
    """
    return _table.ServingRows(
        rows=facts.rows,
        dim=facts.dim,
        hash_seed=facts.hash_seed,
        most_keys=max(1, most_keys),
        folder=os.fspath(folder),
    )


def _add(rows: Any, content: Iterable[Block], advance: Callable[[int], None]) -> None:
    """Adds rows to a `_table.ServingRows`. `advance` is called with the number of rows of each part."""
    add_to = getattr(content, "add_to", None)
    advance(0)
    while add_to is not None and (n := add_to(rows, _ROWS_AT_ONCE)):  # the rows of a scan do not become arrays
        advance(n)
    for block in () if add_to is not None else content:
        rows.add(block.keys, block.rows)
        advance(len(block.keys))


class _Progress:
    """Advances a progress bar, and asks whether to continue."""

    def __init__(self, progress_bar: Any, may_continue: Callable[[], None]) -> None:
        self._bar, self._may_continue, self._written = progress_bar, may_continue, 0

    def read(self, n: int) -> None:
        """Notes that `n` more rows were read."""
        self._bar.update(n)
        self._may_continue()

    def wrote(self, keys: int) -> None:
        """Notes that `keys` keys were written in all. The core calls it."""
        self.read(keys - self._written)
        self._written = keys


class CollectedRows:
    """Rows that were collected on the disk, sorted as a file has them. A file may be written of them in another thread.

    Attributes:
      step: The step of the rows.
      erased: Keys that were erased, int64[m]. None: these are all rows of the table.
    """

    def __init__(self, facts: TableFacts, folder: Path, *, most_keys: int, step: int, erased: Keys | None) -> None:
        """Collects no rows yet.

        Args:
          facts: The table.
          folder: A folder for temporary data.
          most_keys: About how many keys there will be.
          step, erased: See the attributes.
        """
        self.step, self.erased = step, erased
        self.sorted = _rows_of(facts, most_keys + (0 if erased is None else len(erased)), folder)
        if erased is not None:
            self.sorted.erase(erased)

    def __len__(self) -> int:
        """Returns the number of rows and erased keys."""
        return len(self.sorted)

    def add(self, block: Block) -> None:
        """Adds rows."""
        self.sorted.add(block.keys, block.rows)


def write_base(
    path: Path,
    facts: TableFacts,
    content: Any,
    *,
    sequence: int = 0,
    show_progress: bool = True,
    may_continue: Callable[[], None] = lambda: None,
) -> None:
    """Writes a base with all rows of a table.

    Args:
      path: The file, which must not exist. Its folder also gets temporary data.
      facts: The table.
      content: A `Scan`, `CollectedRows`, or an object with the methods `__len__` and `__iter__` of a `Scan`, and its
        attribute `step`.
      sequence: The number of the export.
      show_progress: Whether to show a progress bar if the call takes longer than two seconds.
      may_continue: Called again and again. An error that it raises ends the writing.

    Raises:
      InvalidArgumentError: A row cannot be stored as `facts.rows`.
      OSError, TableError: From the file system.
    """
    with bar(2 * len(content), f"export {facts.name}", show=show_progress) as progress_bar:
        progress = _Progress(progress_bar, may_continue)
        if isinstance(content, CollectedRows):
            rows = content.sorted
        else:
            rows = _rows_of(facts, len(content), path.parent)
            _add(rows, content, progress.read)
        rows.write_base(os.fspath(path), facts.for_core(content.step, (0, sequence)), progress.wrote)


def write_layer(
    path: Path,
    facts: TableFacts,
    changes: Any,
    older: Sequence[str],
    *,
    sequence: int,
    may_continue: Callable[[], None] = lambda: None,
) -> int:
    """Writes a layer with rows that have changed.

    Args:
      path: The file, which must not exist.
      facts: The table.
      changes: The rows and the erased keys, as a `Scan` since a mark, `CollectedRows`, or an object like a `Scan`. A
        key that is among both was made again.
      older: The layers under it, newest first.
      sequence: The number of the export.
      may_continue: As for `write_base`.

    Returns:
      The number of keys. 0: nothing has changed, and no file was written.
    """
    with bar(0, f"export changes of {facts.name}", show=False) as progress_bar:
        progress = _Progress(progress_bar, may_continue)
        if isinstance(changes, CollectedRows):
            rows = changes.sorted
        else:
            rows = _rows_of(facts, len(changes.erased), path.parent)
            rows.erase(changes.erased)  # first: of a key that is added twice, the last counts
            _add(rows, changes, progress.read)
        if len(rows):
            facts_of_file = facts.for_core(changes.step, (sequence, sequence))
            rows.write_layer(os.fspath(path), facts_of_file, list(older), progress.wrote)
    return len(rows)


def write_difference(
    base: str,
    version: Sequence[str],
    path: Path,
    *,
    sequence: int,
    may_continue: Callable[[], None] = lambda: None,
) -> int:
    """Writes a layer that changes the rows of a version into those of a base.

    Args:
      base: A file with all rows.
      version: The files of a table in a version, newest first.
      path: The file to write, which must not exist.
      sequence: The number of the export.
      may_continue: As for `write_base`.

    Returns:
      The number of keys. 0: the rows are equal, and no file was written.
    """
    with bar(0, "compare rows", show=False) as progress_bar:
        progress = _Progress(progress_bar, may_continue)
        return _table.write_serving_difference(base, list(version), os.fspath(path), sequence, progress.wrote)


def merge(
    paths: Sequence[str], older: Sequence[str], path: Path, *, may_continue: Callable[[], None] = lambda: None
) -> None:
    """Merges adjacent files of a table to one.

    Args:
      paths: The files, newest first. If the last one is a base, the result is one.
      older: The layers under them, newest first.
      path: The file to write, which must not exist.
      may_continue: As for `write_base`.
    """
    with bar(0, f"merge {len(paths)} files", show=False) as progress_bar:
        progress = _Progress(progress_bar, may_continue)
        _table.merge_serving_files(list(paths), list(older), os.fspath(path), progress.wrote)
