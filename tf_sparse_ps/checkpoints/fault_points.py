"""Named points of a save, at which tests let it fail or die."""

from __future__ import annotations

from collections.abc import Callable

# In the order in which a save comes to them; `file_written` once for each file.
POINTS = (
    "claimed",
    "leftovers_removed",
    "folder_made",
    "file_written",
    "manifest_written",
    "folder_synced",
    "renamed",
    "directory_synced",
    "set_aside",
    "removed",
)


def _nothing(point: str) -> None:
    """In use."""


_act: Callable[[str], None] = _nothing


def reach(point: str) -> None:
    """A save has come to a point."""
    assert point in POINTS, point
    _act(point)


def set_action(act: Callable[[str], None] | None) -> None:
    """For tests: what happens at each point of every save of this process; None: nothing."""
    global _act
    _act = _nothing if act is None else act
