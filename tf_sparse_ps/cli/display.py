"""Prints results: tables for people, and one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

_LOG_COLUMNS = 1000  # outside of a terminal no line is wrapped or cut
_GAP = 2  # blanks between columns
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def print_json(facts: Any) -> None:
    """Prints one JSON document."""
    click.echo(json.dumps(facts, indent=1, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Prints aligned columns. There are neither colours nor trailing blanks outside of a terminal.

    In a narrow terminal, text is continued in its column. Numbers are neither cut nor continued.

    Args:
      columns: The titles.
      rows: The cells of each row.
      right: The titles of the columns that are aligned to the right.
    """
    show(make_table(columns, rows, right=right))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Any:
    """Returns the rich table that `print_table` prints."""
    from rich.table import Table  # imported here, because JSON needs no rich

    cells = [tuple(row) for row in rows]
    gap, widths = _widths([(title, *column) for title, *column in zip(columns, *cells, strict=True)], right)
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for title, width in zip(columns, widths, strict=True):
        table.add_column(title, justify="right" if title in right else "left", width=width, overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def _widths(texts: Sequence[Sequence[str]], right: Sequence[str]) -> tuple[int, list[int]]:
    """Returns the blanks between columns, and the width of each column, from its texts.

    In a narrow terminal, columns of text are narrowed, but not below a word, and then the blanks.
    """
    whole = [max(map(len, column)) for column in texts]
    least = [
        width if column[0] in right else max((len(word) for text in column for word in text.split()), default=0)
        for column, width in zip(texts, whole, strict=True)
    ]
    spare, gap = make_console().width - sum(least) - _GAP * (len(texts) - 1), _GAP
    if spare < 0:
        spare, gap = spare + len(texts) - 1, _GAP - 1
    widths = []
    for width, narrow in zip(whole, least, strict=True):
        widths.append(min(width, narrow + max(spare, 0)))
        spare -= widths[-1] - narrow
    return gap, widths


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints names and values in two columns. A long value is continued in its column."""
    show(make_facts(facts))


def make_facts(facts: Iterable[tuple[str, str]]) -> Any:
    """Returns the rich table that `print_facts` prints."""
    from rich.table import Table  # imported here, because JSON needs no rich

    table = Table(box=None, show_header=False, show_edge=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in facts:
        table.add_row(*row)
    return table


def make_console() -> Any:
    """Returns a rich console for standard output, which does not interpret texts."""
    from rich.console import Console  # imported here, because JSON needs no rich

    return Console(file=sys.stdout, markup=False, highlight=False, width=_width())


def _width() -> int | None:
    return None if sys.stdout.isatty() else _LOG_COLUMNS


def show(renderable: Any) -> None:
    """Prints something that rich has made. Outside of a terminal there are no trailing blanks."""
    console = make_console()
    if console.is_terminal:
        # If even the words and numbers of a table are wider than the terminal, the terminal continues the lines.
        columns = getattr(renderable, "columns", ())
        console.width = max(console.width, sum((column.width or 0) + _GAP for column in columns))
        console.print(renderable)
        return
    with console.capture() as capture:
        console.print(renderable)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def size(n: float | None) -> str:
    """Returns a number of bytes in words, such as "4.2 GiB"; "-" for None."""
    if n is None:
        return "-"
    unit = 0
    while n >= 1024 and unit < len(_UNITS) - 1:
        n, unit = n / 1024, unit + 1
    return f"{n:.0f} {_UNITS[unit]}" if unit == 0 else f"{n:.1f} {_UNITS[unit]}"


def count(n: int | None) -> str:
    """Returns a number with separators; "-" for None."""
    return "-" if n is None else f"{n:,}"


def rate(n: float | None) -> str:
    """Returns a number per second, with three digits or all before the point; "-" for None."""
    if n is None:
        return "-"
    return f"{n:,.0f}" if n >= 100 or n == 0 else f"{n:.3g}"


def share(part: float | None) -> str:
    """Returns a part of 1 as a percentage; "-" for None."""
    return "-" if part is None else f"{part:.0%}"


def duration(seconds: float | None) -> str:
    """Returns a time in its largest unit, such as "3 h"; "-" for None."""
    if seconds is None:
        return "-"
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
