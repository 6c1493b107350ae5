"""`TableSeeds`: the seeds and salts that determine the initial values of a job's tables.

The salt makes the values of tables with the same seed differ.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tf_sparse_ps._compat import _keras


class TableSeeds:
    """Seeds and salts of a job's tables, in the order of their ordinals.

    Attributes:
      seed: The seed of tables whose configuration has none; 63 bits.
    """

    def __init__(self, uuid: str, keras_seed: str | None, *, follow: bool) -> None:
        """Derives the seed from the Keras seed, or else from the job.

        Args:
          uuid: The job's uuid.
          keras_seed: The Keras seed of rank 0; None: it was not set when the job was made, or the job is named.
          follow: Whether a Keras seed that this process sets later applies from the next table on.
        """
        self.seed = _digest("seed", uuid) if keras_seed is None else _digest("keras seed", keras_seed)
        self._follow, self._first = follow, 0
        self._mark: Any = _current()[1]

    def of(self, ordinal: int) -> tuple[int, int]:
        """Returns seed and salt of the next table, which has this ordinal.

        Salts count from the first table after a seed was set, as Keras's own draws do. So a model that is built again
        after the same seed was set again gets the same values.
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
