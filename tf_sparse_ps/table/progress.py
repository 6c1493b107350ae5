"""Progress bars of what reads or writes a whole table."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

_DELAY_S = 2.0


def bar(rows: int, what: str, *, show: bool = True) -> Any:
    """A bar of so many rows, on a terminal, from the third second on; a context manager with `update(rows)`."""
    disable = None if show else True  # None: not where there is no terminal
    return tqdm(total=rows, desc=what, unit=" rows", unit_scale=True, delay=_DELAY_S, disable=disable)
