"""`Position`: the epoch and the batch at which training is.

A Python loop counts the batches that it takes from the dataset (`count`). In `fit` and in loops of a graph nobody can
count them: there, each of the optimizer's updates counts as one batch.
"""

from __future__ import annotations

from collections.abc import Callable


class Position:
    """An epoch, and the number of updates with which it began.

    Attributes:
      epoch: The epoch, from 0 on.
      first_batch: The first batch of the epoch that this run trains. An earlier run trained those before it.
    """

    def __init__(self, iterations: Callable[[], int]) -> None:
        """Begins at the first batch of epoch 0.

        Args:
          iterations: Returns the number of updates made so far. It is called between steps only: within a step, nothing
            orders the optimizer's update and the first read of a dataset.
        """
        self._iterations = iterations
        self._taken: int | None = None
        self.go_to(0, 0)

    @property
    def batch(self) -> int:
        """The number of batches of the epoch that have been trained, or were refused. Read it between steps."""
        if self._taken is not None:
            return self.first_batch + self._taken
        return self._iterations() - self._begun_at

    def count(self, taken: int | None) -> None:
        """Notes how many batches a Python loop has taken, from `first_batch` on. None: nobody counts them."""
        self._taken = taken

    def go_to(self, epoch: int, batch: int) -> None:
        """Moves to a batch of an epoch. Call it between steps."""
        self.epoch, self.first_batch, self._begun_at = epoch, batch, self._iterations() - batch
        self._taken = None

    def end_epoch(self) -> None:
        """Moves to the first batch of the next epoch."""
        self.go_to(self.epoch + 1, 0)
