"""Progress of work on a whole table: a bar for the user, and reports for ranks that wait (`node/activity.py`)."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from tf_sparse_ps.node import activity

_DELAY_S = 2.0


class _Bar(tqdm):  # type: ignore[type-arg]
    """A progress bar that also reports progress to ranks that wait for this one."""

    def __init__(self, total: int, description: str, *, disable: bool | None) -> None:
        self._activity = activity.begin(description)
        super().__init__(total=total, desc=description, unit=" rows", unit_scale=True, delay=_DELAY_S, disable=disable)

    def update(self, n: float | None = 1) -> bool | None:
        """Advances the bar by `n` rows."""
        activity.progress()
        return super().update(n)

    def close(self) -> None:
        """Removes the bar and records the end of the work."""
        activity.end(self._activity)
        super().close()


def bar(rows: int, description: str, *, show: bool = True) -> Any:
    """Returns a bar that counts rows. It appears on a terminal after two seconds.

    Args:
      rows: The total number of rows; 0: it is not known.
      description: The work, for the bar and for ranks that wait for this one.
      show: Whether to show the bar. Progress is reported in any case.

    Returns:
      A context manager with `update(rows)`.
    """
    return _Bar(rows, description, disable=None if show else True)  # None hides the bar if there is no terminal
