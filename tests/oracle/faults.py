"""Faults that the control plants in a rank. Other draws have none."""

from __future__ import annotations

from typing import Any

import numpy as np

BIT, KEY, GRADIENT = "bit", "key", "gradient"
FAULTS = (GRADIENT, BIT, KEY)  # the model itself has the first one
OPERATION = 1  # a bit is flipped after this operation; its steps and later ones lose a key


class Faults:
    """The faults of this rank."""

    def __init__(self, fault: str, rank: int, ranks: int) -> None:
        """`fault` is one of `FAULTS`, or ""."""
        self._fault, self._rank, self._ranks = fault, rank, ranks
        self._made = False

    def between(self, number: int, network: Any) -> None:
        """Flips the lowest bit of one number of one row, on the first node, without the interfaces of layers."""
        if self._fault != BIT or self._made or number != OPERATION or self._rank != 0:
            return
        self._made = True
        binding = network.bindings[0]
        keys = np.sort(binding.reader().keys())[:1]
        rows = binding.reader().lookup(keys)
        bits = rows.view(np.uint32)
        bits[0, 0] ^= 1
        binding.write_rows(keys, rows)

    def changed(self, batches: Any, first: int) -> Any:
        """Trains one sample of the last rank as if it had other targets, so that the update of one key is wrong."""
        if self._fault != KEY or self._rank != self._ranks - 1 or self._made or first == 0:
            return batches
        self._made = True
        import tensorflow as tf

        def change(inputs: dict[str, Any], labels: Any) -> tuple[dict[str, Any], Any]:
            targets = inputs["yt0f0"]
            flat = tf.reshape(targets, [-1])
            return {**inputs, "yt0f0": tf.reshape(tf.concat([flat[:1] + 0.01, flat[1:]], 0), tf.shape(targets))}, labels

        return batches.map(change)
