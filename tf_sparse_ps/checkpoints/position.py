"""Where training is: which epoch, and which batch of it.

A Python loop counts the batches that it takes from the dataset (`count`). `fit` and loops in graphs take batches where
nobody can count them: there each of the optimizer's updates stands for one batch.
"""

from __future__ import annotations

from collections.abc import Callable


class Position:
    """An epoch, and the number of updates with which it began.

    Attributes:
      epoch: From 0 on.
      first_batch: Of the epoch, that this run trains: those before it were trained when it went there.
    """

    def __init__(self, iterations: Callable[[], int]) -> None:
        """The first batch of epoch 0 is the next one.

        Args:
          iterations: Updates made so far. Asked between steps only: within one, nothing orders the optimizer's update
            behind the first read of a dataset.
        """
        self._iterations = iterations
        self._taken: int | None = None
        self.go_to(0, 0)

    @property
    def batch(self) -> int:
        """Batches of the epoch that have been trained, or were refused. Between steps."""
        if self._taken is not None:
            return self.first_batch + self._taken
        return self._iterations() - self._begun_at

    def count(self, taken: int | None) -> None:
        """A Python loop has taken so many batches, of those from `first_batch` on. None: nobody counts them."""
        self._taken = taken

    def go_to(self, epoch: int, batch: int) -> None:
        """The optimizer is at this batch of this epoch. Between steps."""
        self.epoch, self.first_batch, self._begun_at = epoch, batch, self._iterations() - batch
        self._taken = None

    def end_epoch(self) -> None:
        """The next batch is the first one of the next epoch."""
        self.go_to(self.epoch + 1, 0)
