"""Registers the cases of the rows of the documentation's tables."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tf_sparse_ps._compat import _keras

ROOT = Path(__file__).resolve().parents[2]
# The tables, by their page and the beginning of their header.
TABLES = {
    "training": ("docs/training-reference.md", "| feature |"),
    "strategies": ("docs/training-reference.md", "| under a strategy of several replicas |"),
    "layers": ("docs/keras-differences.md", "| argument or feature |"),
}
_KERAS = 3 if _keras.IS_KERAS_3 else 2


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
      feature: The first cell.
      verdict: The second cell: "works", "same", "adapted", "new" or "refused", and further text.
      text: The other cells.
    """

    feature: str
    verdict: str
    text: str


@dataclasses.dataclass(frozen=True)
class Case:
    """A program for a row, which every rank of a job of two runs.

    Attributes:
      name: The name of the function.
      table, feature: The row.
      run: The function, which gets a `program.Rank`. It raises an error if the promise of the row is not kept.
      refused: A regular expression. If it is set, `run` must end with an error that matches it, on both ranks.
    """

    name: str
    table: str
    feature: str
    run: Callable[[Any], Any]
    refused: str | None = None


@dataclasses.dataclass(frozen=True)
class Covered:
    """A row that another suite tests.

    Attributes:
      table, feature: The row.
      tests: One or more tests, as `file::function`, relative to the root.
      refused: Whether the tests are about a refusal.
    """

    table: str
    feature: str
    tests: tuple[str, ...]
    refused: bool = False


CASES: dict[str, Case] = {}  # for the installed Keras
COVERED: list[Covered] = []
DECLARED: set[tuple[str, str, bool]] = set()  # table, feature, whether refused; for both Kerases


def works(table: str, feature: str, *, keras: int | None = None) -> Callable[[Callable[[Any], Any]], Any]:
    """Registers a case of a row that works, for both versions of Keras or for one."""
    return _register(table, feature, None, keras)


def refused(table: str, feature: str, words: str, *, keras: int | None = None) -> Callable[[Callable[[Any], Any]], Any]:
    """Registers a case that must be refused with a text that matches `words`, a regular expression."""
    return _register(table, feature, words, keras)


def _register(
    table: str, feature: str, words: str | None, version: int | None
) -> Callable[[Callable[[Any], Any]], Any]:
    def register(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        name = run.__name__
        assert name not in CASES, name
        DECLARED.add((table, feature, words is not None))
        if version in (None, _KERAS):
            CASES[name] = Case(name, table, feature, run, words)
        return run

    return register


def covered(table: str, feature: str, *tests: str, refused: bool = False) -> None:
    """Registers a row that other suites test."""
    COVERED.append(Covered(table, feature, tests, refused))
    DECLARED.add((table, feature, refused))


def rows(table: str) -> list[Row]:
    """Returns the rows of a table, as the page has them now."""
    page, header = TABLES[table]
    lines = (ROOT / page).read_text().splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith(header)]
    table_rows = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        feature, verdict, *text = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        table_rows.append(Row(feature, verdict, " | ".join(text)))
    return table_rows
