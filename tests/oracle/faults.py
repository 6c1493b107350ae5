"""Faults that the control plants in a rank. Other draws have none."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracle import data
from tests.oracle.options import Plan
from tests.oracle.policies import UNUSED

BIT, KEY, GRADIENT, STAYS = "bit", "key", "gradient", "stays"
FAULTS = (GRADIENT, UNUSED, BIT, KEY, STAYS)  # the model itself has the first two
OPERATION = 1  # a bit is flipped after this operation; its steps and later ones lose a key


def stays(plan: Plan) -> list[int]:
    """Returns a key that no step but the first trains, if the fault is that its row is not evicted."""
    if plan.fault != STAYS:
        return []
    options = plan.options
    steps = sum(operation.steps for operation in plan.operations)
    trained = [
        np.concatenate([data.batch(options, n, rank).ids[0].ravel() for rank in range(options.ranks)])
        for n in range(steps)
    ]
    return [int(np.setdiff1d(trained[0], np.concatenate(trained[1:]))[0])]


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
