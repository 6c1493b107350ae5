"""Base classes and checks of the formats of files of rows.

| format | keys | rows | slot i | facts (`RowFacts`, JSON) |
|---|---|---|---|---|
| `.parquet` | column `key` | column `row` | column `slot_<i>` | metadata `tf_sparse_ps` of the schema |
| `.npz` | array `keys` | array `rows` | array `slot_<i>` | array `facts`, uint8 |
| `.csv` | column `key` | columns `row_<j>` | columns `slot_<i>_<j>` | first line, after `# ` |

A file without facts is one of another program: its rows are those of a table of its name, without slots.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from pathlib import Path

from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.rows.facts import RowFacts
from tf_sparse_ps.table.scan import Block


class Reader(abc.ABC):
    """An open file of rows.

    Attributes:
      facts: The facts about the table. Without slots in the file, the optimizer is "none".
      at_most: The number of rows, at most; 0: it is not known.
    """

    facts: RowFacts
    at_most: int

    @abc.abstractmethod
    def blocks(self, slots: bool) -> Iterator[Block]:
        """Yields the rows. `slots`: whether the blocks have the slots.

        Raises:
          InvalidArgumentError, DamagedFileError: The file has rows that no table can have, or is damaged.
        """


class Writer(abc.ABC):
    """A file of rows that is being written."""

    @abc.abstractmethod
    def append(self, block: Block) -> None:
        """Writes rows."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Completes the file."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the file, complete or not."""


class Format(abc.ABC):
    """A format of files of rows."""

    @abc.abstractmethod
    def reader(self, path: Path) -> Reader:
        """Opens a file."""

    @abc.abstractmethod
    def writer(self, path: Path, facts: RowFacts) -> Writer:
        """Begins a file. `path`: the file, which does not exist; `facts`: what it says about the table."""


def column_names(dim: int, widths: Sequence[int]) -> list[str]:
    """Returns the names of the columns of a table of text: key, row_0, ..., slot_0_0, ..."""
    slots = [f"slot_{i}_{j}" for i, width in enumerate(widths) for j in range(width)]
    return ["key", *(f"row_{j}" for j in range(dim)), *slots]


def check_slots(path: Path, facts: RowFacts | None, widths: Sequence[int]) -> None:
    """Raises InvalidArgumentError if a file has other slots than its facts say. `widths`: the floats of its slots."""
    if facts is not None and tuple(widths) == facts.widths:
        return
    if facts is None and not widths:
        return
    known = "does not say which optimizer they belong to" if facts is None else f"says that they are {facts.widths}"
    raise InvalidArgumentError(f"{path} has slots of {list(widths)} floats, and {known}. Write the file without them")
