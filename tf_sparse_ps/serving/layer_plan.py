"""The choice of the files of a served table that are merged when it gets a new layer.

Each layer that is merged is written again, and so is the whole base, so merges are put off: until there are more than
`MOST_LAYERS` layers, or until they have more than a quarter of the bytes of the base.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_LAYERS = 8
MOST_OF_BASE = 0.25
OVERDUE = 2 * MOST_OF_BASE  # a base that is written beside versions must be there before layers have this share of it
_MERGED = 4  # layers that are merged at once; layers that are written again this often have 4, 16, ... times the bytes


def needs_base(sizes: Sequence[int], most_of_base: float = MOST_OF_BASE) -> bool:
    """Whether the layers have grown so much that a new base takes their place.

    Args:
      sizes: The bytes of the files of a table, newest first. The last one is the base.
      most_of_base: The share of the base's bytes that layers may have.
    """
    return sum(sizes[:-1]) > most_of_base * sizes[-1]


def to_merge(sizes: Sequence[int], unchanged: int = 1) -> tuple[int, int] | None:
    """Returns the range [begin, end) of the files to merge, or None if there are few enough layers.

    Args:
      sizes: As for `needs_base`.
      unchanged: The number of files, from the base on, that are not merged.
    """
    n_layers, n_free = len(sizes) - 1, len(sizes) - unchanged
    n_merged = min(_MERGED, n_free)
    if n_layers <= MOST_LAYERS or n_merged < 2:
        return None
    ranges = [(begin, begin + n_merged) for begin in range(n_free - n_merged + 1)]
    # The fewest bytes; of equal ones the oldest, because newer layers are next to more new ones.
    return min(reversed(ranges), key=lambda chosen: sum(sizes[chosen[0] : chosen[1]]))


def allows_layer(sizes: Sequence[int], unchanged: int) -> bool:
    """Whether a table can have one more layer while a new base is written.

    Args:
      sizes: As for `needs_base`.
      unchanged: The number of files, from the base on, that the new base will replace.
    """
    can_merge = len(sizes) + 1 - unchanged >= 2  # with the new layer
    return not needs_base(sizes, OVERDUE) and (len(sizes) <= MOST_LAYERS or can_merge)
