"""Rows as text: a line of facts, a line of names, and a line `key,row_0,...` for each row.

Floats have nine digits, by which each float32 is read back to the bit, also by a program that reads float64.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.rows import row_files
from tf_sparse_ps.rows.facts import RowFacts
from tf_sparse_ps.table.scan import Block

_FACTS = "# "
_LINES_AT_ONCE = 1 << 13


class _Writer(row_files.Writer):
    def __init__(self, path: Path, facts: RowFacts) -> None:
        names = row_files.column_names(facts.dim, facts.widths)
        self._line = "%d" + ",%.9g" * (len(names) - 1) + "\n"
        self._file = path.open("x", encoding="utf-8", newline="")
        self._file.write(f"{_FACTS}{facts.encode()}\n{','.join(names)}\n")

    def append(self, block: Block) -> None:
        for start in range(0, len(block.keys), _LINES_AT_ONCE):
            part = slice(start, start + _LINES_AT_ONCE)
            values = np.concatenate([plane[part] for plane in (block.rows, *block.slots)], 1).tolist()
            keys = block.keys[part].tolist()
            lines = [self._line % (key, *row) for key, row in zip(keys, values, strict=True)]
            self._file.write("".join(lines))

    def finish(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Reader(row_files.Reader):
    def __init__(self, path: Path) -> None:
        self._path, self.at_most = path, 0
        with self._opened() as stream:
            facts, names = self._head(stream)
        dim = sum(name.startswith("row_") for name in names)
        widths: list[int] = []
        while width := sum(name.startswith(f"slot_{len(widths)}_") for name in names):
            widths.append(width)
        if dim < 1 or names != row_files.column_names(dim, widths):
            raise InvalidArgumentError(
                f"{path} must have the columns key,row_0,row_1,... and then perhaps slot_0_0,... in this order. It has "
                f"{','.join(names)[:200]}"
            )
        row_files.check_slots(path, facts, widths)
        if facts is not None and facts.dim != dim:
            raise InvalidArgumentError(f"{path} says that its rows have {facts.dim} floats, and they have {dim}")
        self.facts = RowFacts(path.stem, dim) if facts is None else facts
        self._widths = [dim, *widths]

    def _opened(self) -> IO[str]:
        return self._path.open(encoding="utf-8-sig")

    def _head(self, stream: IO[str]) -> tuple[RowFacts | None, list[str]]:
        """Reads the lines before the rows. The stream is then at the first row."""
        try:
            line, facts = stream.readline(), None
            if line.startswith(_FACTS):
                facts = RowFacts.decode(line[len(_FACTS) :], str(self._path))
                line = stream.readline()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{self._path} is no text in UTF-8: {error}") from None
        return facts, [name.strip() for name in line.strip().split(",")]

    def blocks(self, slots: bool) -> Iterator[Block]:
        kind = np.dtype([("key", np.int64), ("values", np.float32, (sum(self._widths),))])
        ends = np.cumsum(self._widths)
        with self._opened() as stream:
            self._head(stream)
            for start in itertools.count(0, _LINES_AT_ONCE):
                lines = list(itertools.islice(stream, _LINES_AT_ONCE))
                if not lines:
                    return
                table = self._parsed(lines, kind, start)
                planes = np.split(table["values"], ends[:-1], axis=1)
                rows, *values = (np.ascontiguousarray(plane) for plane in planes)
                yield Block(np.ascontiguousarray(table["key"]), rows, tuple(values) if slots else (), {})

    def _parsed(self, lines: list[str], kind: np.dtype[Any], start: int) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # lines without data
                # NumPy warns before it makes an integer of a float: key 1.5 would become 1.
                warnings.simplefilter("error", DeprecationWarning)
                return np.loadtxt(lines, kind, delimiter=",", comments=None, ndmin=1)
        except (ValueError, OverflowError, DeprecationWarning) as error:
            raise InvalidArgumentError(
                f"{self._path} has a line that is not a key and its floats, in the {len(lines)} lines of rows from "
                f"number {start + 1} on: {error}"
            ) from None


class Csv(row_files.Format):
    """The format `.csv`."""

    def reader(self, path: Path) -> row_files.Reader:
        return _Reader(path)

    def writer(self, path: Path, facts: RowFacts) -> row_files.Writer:
        return _Writer(path, facts)
