"""What the initial values of a job's tables follow from: a seed, and a salt that tells apart tables of one seed."""

from __future__ import annotations

import hashlib
from typing import Any

from tf_sparse_ps._compat import _keras


class TableSeeds:
    """Seeds and salts of a job's tables, in the order of their ordinals.

    Attributes:
      seed: Of the next table that is given none; 63 bits.
    """

    def __init__(self, uuid: str, keras_seed: str | None, *, follow: bool) -> None:
        """Draws the seed.

        Args:
          uuid: Of the job, the seed's origin without a Keras seed.
          keras_seed: Rank 0's, if it was set when the job was made and counts.
          follow: Seeds that are set in this process later count too, from the next table on.
        """
        self.seed = _digest("seed", uuid) if keras_seed is None else _digest("keras seed", keras_seed)
        self._follow, self._first = follow, 0
        self._mark: Any = _current()[1]

    def of(self, ordinal: int) -> tuple[int, int]:
        """Seed and salt of the table with this ordinal, the next one.

        Salts count from the table that was the first after a seed was set, as Keras's own draws do: a model that is
        made again after the same seed gets the same values.
        """
        seed, mark = _current()
        if self._follow and mark is not self._mark:
            self._mark, self._first = mark, ordinal
            if seed is not None:
                self.seed = _digest("keras seed", seed)
        return self.seed, ordinal - self._first


def _current() -> tuple[str | None, Any]:
    return _keras.random_seed()


def _digest(*parts: str) -> int:
    return int(hashlib.sha256("\0".join(("tf_sparse_ps", *parts)).encode()).hexdigest()[:32], 16) >> 65
