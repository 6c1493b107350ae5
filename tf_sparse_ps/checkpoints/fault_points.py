"""Named points of saves, compactions and restores, at which tests let them fail or die."""

from __future__ import annotations

from collections.abc import Callable

# In the order in which a save comes to them; `file_written` once for each file, the last two for each old checkpoint.
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
# Tables and dense weights are captured: behind `folder_made`, in the thread that trains.
CAPTURED = "captured"
# A leader has written its part; has told rank 0 so; rank 0 has read that.
PART_WRITTEN, PART_REPORTED, PART_TAKEN = PART_POINTS = ("part_written", "part_reported", "part_taken")
# A restore; `rows_restored` once for each block of rows, `table_restored` for each table.
RESTORE_POINTS = ("compared", "rows_restored", "table_restored", "step_set", "variables_restored")


def _nothing(point: str) -> None:
    """In use."""


_act: Callable[[str], None] = _nothing


def reach(point: str) -> None:
    """A save, a compaction or a restore has come to a point."""
    assert point in (*POINTS, CAPTURED, *PART_POINTS, *RESTORE_POINTS), point
    _act(point)


def set_action(act: Callable[[str], None] | None) -> None:
    """For tests: what happens at each point, in whatever thread of this process; None: nothing."""
    global _act
    _act = _nothing if act is None else act
