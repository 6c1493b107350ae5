"""The choice of the files of a served table that are merged when it gets a new layer.

Each layer that is merged is written again, and so is the whole base, so merges are put off: until there are more than
`MOST_LAYERS` layers, or until they have more than a quarter of the bytes of the base.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_LAYERS = 8
MOST_OF_BASE = 0.25
_MERGED = 4  # layers that are merged at once; layers that are written again this often have 4, 16, ... times the bytes


def needs_base(sizes: Sequence[int]) -> bool:
    """Whether the layers have grown so much that a new base takes their place.

    Args:
      sizes: The bytes of the files of a table, newest first. The last one is the base.
    """
    return sum(sizes[:-1]) > MOST_OF_BASE * sizes[-1]


def to_merge(sizes: Sequence[int]) -> tuple[int, int] | None:
    """Returns the range [begin, end) of the files to merge, or None if there are few enough layers.

    Args:
      sizes: As for `needs_base`.
    """
    n_layers = len(sizes) - 1
    if n_layers <= MOST_LAYERS:
        return None
    ranges = [(begin, begin + _MERGED) for begin in range(n_layers - _MERGED + 1)]
    # The fewest bytes; of equal ones the oldest, because newer layers are next to more new ones.
    return min(reversed(ranges), key=lambda chosen: sum(sizes[chosen[0] : chosen[1]]))
