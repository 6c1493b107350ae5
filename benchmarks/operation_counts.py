"""Counts how often each operation of this process's collectives has run."""

from __future__ import annotations

import collections
from typing import Any


def operation_counts(ranks: Any) -> dict[str, int]:
    """Returns the number of runs of each operation, by its name.

    Args:
        ranks: Horovod's or TensorFlow's collectives.
    """
    counts: collections.Counter[str] = collections.Counter()
    # Horovod's collectives have a counter for each operation; TensorFlow's have a token for each part of an operation.
    variables = ranks._counters if ranks.kind == "horovod" else ranks._tokens
    for label, runs in variables.items():
        counts[label.partition("[")[0]] += int(runs.numpy())
    return dict(counts)
