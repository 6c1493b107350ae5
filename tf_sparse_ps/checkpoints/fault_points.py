"""Named points of saves, compactions and restores, at which tests let them fail or kill the process."""

from __future__ import annotations

from collections.abc import Callable

# The points of a save, in order. It reaches `file_written` once for each file, and the last two for each old checkpoint
# that it removes.
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
# Tables and dense weights are captured: after `folder_made`, in the thread that trains.
CAPTURED = "captured"
# A leader has written its part; it has reported that to rank 0; rank 0 has read the report.
PART_WRITTEN, PART_REPORTED, PART_TAKEN = PART_POINTS = ("part_written", "part_reported", "part_taken")
# More points of a save to a URL. It reaches `piece_sent` for each piece of a file, and `file_sent` for each file.
STORE_POINTS = ("store_claimed", "store_leftovers_removed", "piece_sent", "file_sent", "all_sent", "manifest_sent")
FILE_FETCHED = "file_fetched"  # a file has been read from a URL
# The points of a restore. It reaches `rows_restored` for each block of rows, and `table_restored` for each table.
RESTORE_POINTS = ("compared", "rows_restored", "table_restored", "step_set", "variables_restored")


def _nothing(point: str) -> None:
    """Does nothing, as in production."""


_act: Callable[[str], None] = _nothing


def reach(point: str) -> None:
    """Does what tests have set for a point that a save, a compaction or a restore has reached."""
    assert point in (*POINTS, CAPTURED, *PART_POINTS, *STORE_POINTS, FILE_FETCHED, *RESTORE_POINTS), point
    _act(point)


def set_action(act: Callable[[str], None] | None) -> None:
    """Sets what happens at each point, in any thread of this process. For tests; None: nothing."""
    global _act
    _act = _nothing if act is None else act
