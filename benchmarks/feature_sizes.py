"""The sizes of the cases of many features, each with its own table, in the suite `layers`."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness

FEATURES = 26
ROWS = 100_000  # from which the ids of a feature are drawn


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a case.

    Attributes:
        ids: The number of ids of each feature.
        dims: Widths of rows. The tables have them in turn.
    """

    ids: int
    dims: tuple[int, ...] = (16,)

    def dim(self, feature: int) -> int:
        """Returns the width of a feature's table."""
        return self.dims[feature % len(self.dims)]

    def batches(self, count: int) -> list[NDArray[np.int64]]:
        """Returns batches of int64[FEATURES, ids]."""
        return harness.feature_ids(FEATURES, self.ids, ROWS, count)

    def gradients(self) -> list[NDArray[np.float32]]:
        """Returns gradients of the outputs: float32[FEATURES, ids, dim], or flat if the tables differ in width."""
        if len(self.dims) == 1:
            return harness.normal_gradients(FEATURES, self.ids, self.dims[0])
        return harness.normal_gradients(self.ids * sum(self.dim(feature) for feature in range(FEATURES)))

    def __str__(self) -> str:
        """Describes the case in a report."""
        return f"{FEATURES} features x {self.ids:,} ids x {', '.join(map(str, self.dims))}"


CASES = (*(Sizes(ids) for ids in (128, 512, 2_048, 4_096)), *(Sizes(512, dims) for dims in ((8,), (64,), (8, 16, 64))))
PEER_CASES = (Sizes(512), Sizes(2_048))
