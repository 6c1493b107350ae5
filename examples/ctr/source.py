"""`ClickData`: the interface of a source of click data."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf


class ClickData(Protocol):
    """A source of batches `({"dense": float32[batch, dense_width], "ids": int64[batch, features]}, float32[batch])`."""

    name: str
    features: tuple[str, ...]
    dense_width: int
    distinct_ids: tuple[int | None, ...]
    """The largest number of distinct ids of each feature. None: it is unknown."""

    def train(self, batch: int, rank: int, ranks: int) -> tuple[tf.data.Dataset, int]:
        """Returns this rank's share of one pass over the training data, and its number of steps, equal on all ranks."""

    def test(self, batch: int) -> tf.data.Dataset:
        """Returns all held-out data, in batches of at most `batch` samples."""
