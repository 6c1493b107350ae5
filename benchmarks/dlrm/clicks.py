"""`Clicks`: files of click data, which the jobs of all frameworks read in the same way. Imports NumPy only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DENSE, FEATURES = 13, 26
SAMPLE = np.dtype([("dense", np.float32, DENSE), ("ids", np.int64, FEATURES), ("label", np.float32)])


@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples in the order of their file.

    Attributes:
        dense: float32[size, DENSE].
        ids: int64[size, FEATURES]; an id is at least 0 and less than its table's number of rows.
        labels: float32[size], 0 or 1.
    """

    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    labels: NDArray[np.float32]


class Clicks:
    """A folder with train.bin and test.bin, arrays of SAMPLE, and tables.json, the number of rows of each table."""

    def __init__(self, folder: Path) -> None:
        self.train, self.test = folder / "train.bin", folder / "test.bin"
        self.tables: list[int] = json.loads((folder / "tables.json").read_text())

    @staticmethod
    def count(file: Path) -> int:
        """Returns the number of samples in a file."""
        return file.stat().st_size // SAMPLE.itemsize

    @staticmethod
    def read(file: Path, number: int, size: int) -> Batch:
        """Reads batch `number` of a file. The last batch may be smaller."""
        # The file is not mapped, because its pages would count as memory of the job.
        samples = np.fromfile(file, SAMPLE, size, offset=number * size * SAMPLE.itemsize)
        return Batch(*(np.ascontiguousarray(samples[name]) for name in ("dense", "ids", "label")))
