"""`sample`: the norms and ages of some rows of a table that may be trained meanwhile. Imports NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tf_sparse_ps import _table
from tf_sparse_ps.config.metadata import USE

_BLOCK = 64  # rows that are read next to each other


@dataclasses.dataclass(frozen=True)
class RowSample:
    """Some rows of a table, as of one committed step.

    Attributes:
      norms: The Euclidean norms of the rows, float64[n].
      ages: The steps since each of them was trained, int64[n]. None: the table does not record the use of rows.
    """

    norms: npt.NDArray[np.float64]
    ages: npt.NDArray[np.int64] | None


def sample(group: _table.Group, table: int, most: int, random: np.random.Generator) -> RowSample:
    """Reads rows in memory from random places. Its cost does not grow with the table.

    Args:
      group: The group.
      table: The place of the table.
      most: The most rows to read. A table that has no more of them is read whole, but for its rows on disk.
      random: Draws the places.

    Raises:
      TableError: The rows cannot be read, or not now.
    """
    (scan,) = group.scans([table], True, 0, [None])
    try:
        numbers = scan.row_numbers()
        if numbers <= most:
            starts, size = [0], most
        else:
            blocks = np.sort(random.choice(-(-numbers // _BLOCK), max(most // _BLOCK, 1), replace=False))
            starts, size = (blocks * _BLOCK).tolist(), _BLOCK
        parts = []
        for start in starts:
            scan.skip_to(start)
            _, rows, _, metadata = scan.next(size)
            parts.append((rows, metadata.get(USE.name)))
        step = scan.step()
    finally:
        scan.close()
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.square(np.concatenate([rows for rows, _ in parts]).astype(np.float64)).sum(1))
    uses = [use for _, use in parts if use is not None]
    ages = np.maximum(step - np.concatenate(uses)[:, 0].astype(np.int64), 0) if uses else None
    return RowSample(norms, ages)
