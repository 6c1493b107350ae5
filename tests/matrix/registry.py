"""Which case belongs to which row of the documentation's tables."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tf_sparse_ps._compat import _keras

ROOT = Path(__file__).resolve().parents[2]
# Tables, by the page and the beginning of their header.
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
      feature: Its first cell.
      verdict: Its second one: "works", "same", "adapted", "new" or "refused", and what follows.
      text: The rest.
    """

    feature: str
    verdict: str
    text: str


@dataclasses.dataclass(frozen=True)
class Case:
    """What is run for a row, on every rank of a job of two.

    Attributes:
      name: Of the function.
      table, feature: The row.
      run: Takes what `program.Rank` is. It raises where the row's promise is not kept.
      refused: A regular expression: `run` must end with an error that has it, on both ranks.
    """

    name: str
    table: str
    feature: str
    run: Callable[[Any], Any]
    refused: str | None = None


@dataclasses.dataclass(frozen=True)
class Covered:
    """A row that another suite runs.

    Attributes:
      table, feature: The row.
      tests: `file::function`, from the root; at least one.
      refused: Whether it is a refusal that they test.
    """

    table: str
    feature: str
    tests: tuple[str, ...]
    refused: bool = False


CASES: dict[str, Case] = {}  # of the Keras that is installed
COVERED: list[Covered] = []
DECLARED: set[tuple[str, str, bool]] = set()  # table, feature, whether refused: of both Kerases' cases


def works(table: str, feature: str, *, keras: int | None = None) -> Callable[[Callable[[Any], Any]], Any]:
    """Registers a case of a row that works, under both versions of Keras or under one."""
    return _register(table, feature, None, keras)


def refused(table: str, feature: str, words: str, *, keras: int | None = None) -> Callable[[Callable[[Any], Any]], Any]:
    """Registers a case that must be refused with a text that has `words`, a regular expression."""
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
    """Registers a row that tests of other suites run."""
    COVERED.append(Covered(table, feature, tests, refused))
    DECLARED.add((table, feature, refused))


def rows(table: str) -> list[Row]:
    """The rows of a table, as the page has them now."""
    page, header = TABLES[table]
    lines = (ROOT / page).read_text().splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith(header)]
    found = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        feature, verdict, *text = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        found.append(Row(feature, verdict, " | ".join(text)))
    return found
