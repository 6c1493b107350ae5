"""Finds the checkpoints that must be complete after a run. No restart may begin before them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.options import Plan
from tests.oracle.progress import Progress
from tests.oracle.timeline import Position


def oldest(plan: Plan, notes: Sequence[Progress]) -> Position:
    """Returns the position of the newest checkpoint that must be complete; (0, 0): none.

    Args:
      plan: The plan of the draw.
      notes: The progress of the ranks that have begun the script.
    """
    options = plan.options
    if not notes:
        return 0, 0
    farthest = max((note.op, note.sub) for note in notes)
    if options.policy == "callback":
        (operation,) = plan.operations
        if any(note.phase == "done" for note in notes):
            return 1, 0
        # A rank that begins step m has finished the save of m. A save in the background waits for the previous one.
        complete = farthest[1] // options.every * options.every - (options.every if options.background else 0)
        return (0, max(complete, 0)) if complete < sum(operation.epochs) else (1, 0)
    saves = [number for number, operation in enumerate(plan.operations) if operation.kind == "save"]
    passed = [number for number in saves if number < farthest[0]]
    done = any(note.phase == "done" for note in notes)
    complete_saves = [
        number
        for i, number in enumerate(passed)
        if plan.operations[number].value or not options.background or i + 1 < len(passed) or done
    ]
    return (max(complete_saves) + 1, 0) if complete_saves else (0, 0)
