"""Settings of the test that sharded tables give the numbers of the reference, and the combinations that are tested."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "layers"))

from pairwise import pairwise

# The hosts of each layout, and the ranks of each node, in order.
LAYOUTS: dict[str, tuple[str, list[list[int]]]] = {
    "2x2": ("localhost:2,127.0.0.1:2", [[0, 1], [2, 3]]),
    "3x1": ("localhost:1,127.0.0.1:1,127.0.0.2:1", [[0], [1], [2]]),
    "2x1": ("localhost:1,127.0.0.1:1", [[0], [1]]),
    "3x2": ("localhost:2,127.0.0.1:2,127.0.0.2:2", [[0, 1], [2, 3], [4, 5]]),
}
SETTINGS: dict[str, list[Any]] = {
    "layout": list(LAYOUTS),
    "optimizer": ["sgd", "adagrad", "adam"],
    "reduction": ["frequency", "average", "sum"],
    "dtype": ["float32", "bfloat16", "float16"],
    "push": ["float32", "bfloat16", "float16"],
    "pull": ["float32", "bfloat16", "float16"],
    "storage": ["memory", "tiered"],
    "ahead": [0, 1, 4, 32],  # the length of a pass of `tsps.lookahead`; 0: rows are fetched on demand
}
CASES = pairwise(SETTINGS)
# Three cases of each of two layouts: two launches, with every value of the other settings. The first runs every day.
DAILY = [case for layout in ("2x2", "3x1") for case in [case for case in CASES if case["layout"] == layout][:3]]
NIGHTLY = [case for case in CASES if case not in DAILY]
STEPS = 12
# The tables of batches.py: the first one has its own layer, and the others are in one EmbeddingCollection.
SHARDED = (True, True, False, True)
ON_DISK = (True, False, False, True)  # whether a table is on disk with storage="tiered"
ROUNDS_PULLS = (True, True, False, False)  # whether a narrow wire rounds pulls; the last tables' rows travel as float32


def name_of(case: dict[str, Any]) -> str:
    """Returns the name of a case's files and test."""
    return "-".join(str(value) for value in case.values())
