"""How often ids occur: by Zipf's law, or as in a sample of a job's ids.

A step draws some ids from the rows of a table. `distinct` and `missing` are expected numbers of keys per step.
"""

from __future__ import annotations

import collections
import functools
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
_EXACT = 10_000  # the most frequent rows are counted one by one, the others in bins
_BINS = 2_000
_MOST_SAMPLED = 2_000_000  # ids that an LRU cache is simulated for
POLICIES = ("lru", "lfu")


class Skew(Protocol):
    """The frequencies of a table's ids."""

    def distinct(self, draws: float) -> float:
        """Returns the number of distinct ids among `draws` ids."""

    def missing(self, draws: float, rows: float) -> float:
        """Returns how many distinct ids of a step of `draws` ids are not among the `rows` most frequent ones."""

    def hit_rate(self, rows: float, policy: str) -> float:
        """Returns the share of ids that find their row in a cache of `rows` rows. `policy`: "lru" or "lfu"."""


class Zipf:
    """Ids that are drawn independently: row k of V has a probability proportional to k ** -exponent."""

    def __init__(self, rows: int, exponent: float) -> None:
        self._rows = rows
        edges = np.arange(1.0, min(rows, _EXACT) + 2)
        if rows > _EXACT:
            edges = np.concatenate([edges, np.geomspace(_EXACT + 1.0, rows + 1.0, _BINS + 1)[1:]])
        self._begin, self._n = edges[:-1] - 1, np.diff(edges)
        middle = np.where(self._n == 1, edges[:-1], np.sqrt(edges[:-1] * edges[1:]))
        weights = middle**-exponent
        self._p = weights / (weights * self._n).sum()

    def distinct(self, draws: float) -> float:
        """See `Skew.distinct`."""
        return self.missing(draws, 0)

    def missing(self, draws: float, rows: float) -> float:
        """See `Skew.missing`."""
        n = np.clip(self._begin + self._n - rows, 0, self._n)
        return float((n * -np.expm1(draws * np.log1p(-np.minimum(self._p, 1 - 1e-12)))).sum())

    def hit_rate(self, rows: float, policy: str) -> float:
        """See `Skew.hit_rate`. An LRU cache is approximated by its characteristic time (Che et al. 2002)."""
        if rows >= self._rows:
            return 1.0
        if policy == "lfu":
            return float((np.clip(rows - self._begin, 0, self._n) * self._p).sum())
        low, high = 0.0, 1e18
        for _ in range(200):
            time = (low + high) / 2
            cached = float((self._n * -np.expm1(-self._p * time)).sum())
            low, high = (time, high) if cached < rows else (low, time)
        return float((self._n * self._p * -np.expm1(-self._p * low)).sum())


class Sampled:
    """Ids of a sample, in the order in which a job reads them.

    The first half of the sample fills caches, and the second half is counted. If a step has more ids than half of the
    sample, Zipf's law gives the ratio to the steps that were counted.
    """

    def __init__(self, ids: Ids, rows: int, exponent: float) -> None:
        """`rows` and `exponent`: of the whole table, for steps that are larger than the sample."""
        self._ids = np.ascontiguousarray(ids.reshape(-1))
        half = len(self._ids) // 2
        self._first, self._second = self._ids[:half], self._ids[half:]
        keys, counts = np.unique(self._first, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        position = np.empty(len(keys), np.int64)
        position[order] = np.arange(len(keys))
        found = np.clip(np.searchsorted(keys, self._second), 0, len(keys) - 1)
        known = keys[found] == self._second
        # The place of each id among the keys of the first half, by their counts. New ones come last.
        self._places = np.where(known, position[found], np.iinfo(np.int64).max)
        self._law = Zipf(rows, exponent)

    def __len__(self) -> int:
        """Returns the number of ids."""
        return len(self._ids)

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a process plans a few tables
    def missing(self, draws: float, rows: float) -> float:
        """See `Skew.missing`."""
        step = max(1, round(draws))
        measured = min(step, len(self._second))
        parts = len(self._second) // measured
        found = 0
        for part in range(parts):
            at = slice(part * measured, (part + 1) * measured)
            found += len(np.unique(self._second[at][self._places[at] >= rows]))
        mean = found / parts
        return mean if step == measured else mean * self._law.distinct(step) / self._law.distinct(measured)

    def distinct(self, draws: float) -> float:
        """See `Skew.distinct`."""
        return self.missing(draws, 0.0)

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a process plans a few tables
    def hit_rate(self, rows: float, policy: str) -> float:
        """See `Skew.hit_rate`."""
        if policy == "lfu":
            return float((self._places < rows).mean())
        ids = self._ids[-_MOST_SAMPLED:].tolist()
        cache: collections.OrderedDict[int, None] = collections.OrderedDict()
        hits, half = 0, len(ids) // 2
        for i, key in enumerate(ids):
            if key in cache:
                cache.move_to_end(key)
                hits += i >= half
            else:
                cache[key] = None
                if len(cache) > rows:
                    cache.popitem(last=False)
        return hits / (len(ids) - half)
