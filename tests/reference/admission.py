"""A plain simulation of admission. It shares no code with the package: it follows docs/vocabularies.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from eviction import ALL, hashes


@dataclasses.dataclass
class Admissions:
    """The counts of the keys of a table that have no row.

    Attributes:
      index_seed: The seed of the index of the sketch's table.
      count: As for tsps.Admission.
      half_life: As for tsps.Admission.
      expected_keys: As for tsps.Admission, on one machine.
      admitted: The number of keys that got a row.
      dropped: The number of gradients of keys that did not.
    """

    index_seed: int
    count: int
    half_life: int
    expected_keys: int
    admitted: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        is_wide = self.count > 15
        self._cells, self._most = (60, 255) if is_wide else (120, 15)
        self._lines = max(1, -(-self.expected_keys // (33 if is_wide else 66)))
        self._counts = np.zeros((self._lines, self._cells), np.int64)
        self._changed = np.zeros(self._lines, np.int64)

    def step(self, number: int, occurrences: Mapping[int, int]) -> set[int]:
        """Counts the keys of a step that have no row.

        Args:
          number: The number of the step.
          occurrences: The number of ids of all ranks with each key.

        Returns:
          The keys that get no row.
        """
        keys = sorted(occurrences)
        dropped = set()
        for key, value in zip(keys, hashes(np.array(keys, np.int64), ALL - self.index_seed).tolist(), strict=True):
            line = value * self._lines >> 64
            self._counts[line] >>= number // self.half_life - self._changed[line] // self.half_life
            self._changed[line] = number
            first = value % 65536 % self._cells
            second = (first + 1 + value // 65536 % 65536 % (self._cells - 1)) % self._cells
            cells = self._counts[line]
            count = min(min(cells[first], cells[second]) + min(occurrences[key], 255), self._most)
            cells[first], cells[second] = max(cells[first], count), max(cells[second], count)
            if count < self.count:
                dropped.add(key)
        self.dropped += len(dropped)
        self.admitted += len(keys) - len(dropped)
        return dropped
