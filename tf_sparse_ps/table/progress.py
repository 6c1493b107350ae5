"""Progress of what reads or writes a whole table: a bar for the user, and reports for ranks that wait (`activity`)."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from tf_sparse_ps.node import activity

_DELAY_S = 2.0


class _Bar(tqdm):  # type: ignore[type-arg]
    """A bar that also reports progress to ranks that wait."""

    def __init__(self, total: int, what: str, *, disable: bool | None) -> None:
        self._activity = activity.begin(what)
        super().__init__(total=total, desc=what, unit=" rows", unit_scale=True, delay=_DELAY_S, disable=disable)

    def update(self, n: float | None = 1) -> bool | None:
        """So many rows more."""
        activity.progress()
        return super().update(n)

    def close(self) -> None:
        """The work has ended."""
        activity.end(self._activity)
        super().close()


def bar(rows: int, what: str, *, show: bool = True) -> Any:
    """Returns a bar of so many rows, shown on a terminal from the third second on.

    Args:
      rows: In all; 0: not known.
      what: The work, for the bar and for ranks that wait for this one.
      show: False: nothing is shown. Progress is reported all the same.

    Returns:
      A context manager with `update(rows)`.
    """
    return _Bar(rows, what, disable=None if show else True)  # None: not where there is no terminal
