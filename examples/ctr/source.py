"""What a source of click data offers to the training program."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf


class ClickData(Protocol):
    """Batches of `({"dense": float32[batch, dense_width], "ids": int64[batch, features]}, label float32[batch])`."""

    name: str
    features: tuple[str, ...]
    dense_width: int
    distinct_ids: tuple[int | None, ...]
    """Of each feature at most; None: not known."""

    def train(self, batch: int, rank: int, ranks: int) -> tuple[tf.data.Dataset, int]:
        """This rank's share of one pass over the training data, and its number of steps, equal on all ranks."""

    def test(self, batch: int) -> tf.data.Dataset:
        """The held-out data, all of it, in batches of at most `batch`."""
