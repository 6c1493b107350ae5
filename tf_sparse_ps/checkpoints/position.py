"""Where training is: which epoch, and which batch of it. Iterators do not know; the optimizer's updates count."""

from __future__ import annotations

from collections.abc import Callable


class Position:
    """An epoch, and the number of updates with which it began.

    Attributes:
      epoch: From 0 on.
    """

    def __init__(self, iterations: Callable[[], int]) -> None:
        """The first batch of epoch 0 is the next one.

        Args:
          iterations: Updates made so far.
        """
        self._iterations = iterations
        self.epoch = 0
        self._begun_at: int | None = None  # None: with the updates made when it is first asked for

    @property
    def batch(self) -> int:
        """Batches of the epoch that have been trained."""
        made = self._iterations()
        if self._begun_at is None:
            self._begun_at = made
        return made - self._begun_at

    def go_to(self, epoch: int, batch: int) -> None:
        """The optimizer is at this batch of this epoch."""
        self.epoch, self._begun_at = epoch, self._iterations() - batch

    def end_epoch(self) -> None:
        """The next batch is the first one of the next epoch."""
        self.go_to(self.epoch + 1, 0)
