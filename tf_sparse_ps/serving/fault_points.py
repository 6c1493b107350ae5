"""Named points of exports, merges and copies of versions, at which tests kill the process or let it fail."""

from __future__ import annotations

from collections.abc import Callable

# The points of an export, in order. It reaches `file_ready` for each file that is linked, written or merged.
EXPORT_POINTS = ("folder_made", "model_saved", "file_ready", "tables_ready", "manifest_written", "synced", "renamed")
# The point of a new base that is written beside versions.
BASE_POINTS = ("base_ready",)
# The points of the removal of a version.
REMOVAL_POINTS = ("set_aside", "removed")


def _nothing(point: str) -> None:
    """Does nothing, as in production."""


_act: Callable[[str], None] = _nothing


def reach(point: str) -> None:
    """Does what tests have set for a point."""
    assert point in (*EXPORT_POINTS, *BASE_POINTS, *REMOVAL_POINTS), point
    _act(point)


def set_action(act: Callable[[str], None] | None) -> None:
    """Sets what happens at each point, in any thread of this process. For tests; None: nothing."""
    global _act
    _act = _nothing if act is None else act
