"""`due`: the rows that an eviction removes at once, outside of steps. In a step, cc/core/group decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tf_sparse_ps.config.eviction import Eviction
from tf_sparse_ps.config.metadata import USE
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.table.arrays import Keys
from tf_sparse_ps.table.table import Table


def check(table: Table) -> None:
    """Raises StateError if a table does not record the use of its rows."""
    if USE not in table.config.metadata:
        raise StateError(
            f"table {table.path} does not record the use of its rows. Make the layer or table with `eviction`"
        )


def due(table: Table, eviction: Eviction, max_rows: int | None, keep: Sequence[int] = ()) -> Keys:
    """Returns the keys of the rows that an eviction removes, in one committed state.

    The result depends on keys and uses alone, so it is the same on all nodes with the same rows.

    Args:
      table: The table.
      eviction: The eviction.
      max_rows: The bound of this table, which may be a part of a larger one; None: any number.
      keep: Keys that stay in addition to those that the eviction keeps.

    Raises:
      StateError: The table does not record the use of its rows.
    """
    check(table)
    with table.scan() as scan:
        step = scan.step
        parts = [(block.keys, block.metadata[USE.name]) for block in scan]
    keys = np.concatenate([np.empty(0, np.int64), *(part for part, _ in parts)])
    uses = np.concatenate([np.empty((0, 2), np.uint32), *(part for _, part in parts)]).astype(np.int64)
    kept = np.isin(keys, np.array([*eviction.keep, *keep], np.int64))
    unused = np.zeros(len(keys), np.bool_)
    if eviction.unused_steps is not None:
        unused = ~kept & (step - uses[:, 0] >= eviction.unused_steps)
    excess = 0 if max_rows is None else len(keys) - int(unused.sum()) - max_rows
    others = np.flatnonzero(~kept & ~unused)
    order = _least_used_first(keys[others], uses[others], eviction, step)
    return np.sort(np.concatenate([keys[unused], keys[others[order[: max(0, excess)]]]]))


def _least_used_first(keys: Keys, uses: npt.NDArray[np.int64], eviction: Eviction, step: int) -> npt.NDArray[np.intp]:
    last = np.minimum(uses[:, 0], step)  # a loaded row may have a later one
    halvings = np.clip(step // eviction.half_life - uses[:, 0] // eviction.half_life, 0, 32)
    counts = uses[:, 1] >> halvings
    if eviction.policy == "lfu":
        return np.lexsort((keys, last, counts))
    return np.lexsort((keys, counts, last))
