"""`RankClock`: when it is time for what all ranks do together."""

from __future__ import annotations

import time

from tf_sparse_ps.collectives import Collectives


class RankClock:
    """Decides, alike on all ranks, when a time has passed on rank 0.

    Asking rank 0 at each step would cost a collective per step. So the ranks agree each time on the step at which they
    ask next: after half of the time that is left, by the duration of the last steps.
    """

    def __init__(self, seconds: float, ranks: Collectives, updates: int, name: str) -> None:
        """Starts the clock.

        Args:
          seconds: The time.
          ranks: The job's collectives.
          updates: The updates that the optimizer has made so far, the same on all ranks.
          name: The name of the collective operation.
        """
        self._seconds, self._ranks, self._name = seconds, ranks, name
        self._last_due_at = time.monotonic()
        self._asked_after, self._asked_at = updates, self._last_due_at
        self._ask_after = updates + 1

    def is_time(self, updates: int) -> bool:
        """Returns whether the time has passed since it last returned True. Every rank calls it after each step.

        Args:
          updates: The updates that the optimizer has made so far, the same on all ranks.
        """
        if updates < self._ask_after:
            return False
        now = time.monotonic()
        is_due = now - self._last_due_at >= self._seconds
        seconds_per_step = (now - self._asked_at) / max(updates - self._asked_after, 1)
        seconds_left = self._seconds - (0.0 if is_due else now - self._last_due_at)
        # Halfway there at most, and never much longer than it was between the last two times.
        most_steps = min(2 * max(updates - self._asked_after, 1), 1000)
        steps = int(min(max(seconds_left / 2 / max(seconds_per_step, 1e-9), 1), most_steps))
        is_due, steps = self._ranks.broadcast_object((is_due, steps), 0, self._name)
        self._asked_after, self._asked_at, self._ask_after = updates, now, updates + steps
        if is_due:
            self._last_due_at = now
        return bool(is_due)
