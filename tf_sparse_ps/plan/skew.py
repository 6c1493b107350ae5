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
_MOST_SIMULATED = 1_000_000  # ids that an LRU cache is simulated for
POLICIES = ("lru", "lfu")


class Skew(Protocol):
    """The frequencies of a table's ids."""

    def distinct(self, draws: float) -> float:
        """Returns the number of distinct ids among `draws` ids."""

    def missing(self, draws: float, rows: float) -> float:
        """Returns how many distinct ids of a step of `draws` ids are not in an LRU cache of `rows` rows before it.

        A tiered table keeps rows by counts of uses that fade, so once they are known, fewer rows are missing.
        """

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
        return float((self._n * self._in_step(draws)).sum())

    def missing(self, draws: float, rows: float) -> float:
        """See `Skew.missing`."""
        if rows >= self._rows:
            return 0.0
        return float((self._n * self._in_step(draws) * np.exp(-self._p * self._lru_time(rows))).sum())

    def hit_rate(self, rows: float, policy: str) -> float:
        """See `Skew.hit_rate`."""
        if rows >= self._rows:
            return 1.0
        if policy == "lfu":
            return float((np.clip(rows - self._begin, 0, self._n) * self._p).sum())
        return float((self._n * self._p * -np.expm1(-self._p * self._lru_time(rows))).sum())

    def _in_step(self, draws: float) -> Floats:
        """Returns the probability that a row of each bin is among `draws` ids."""
        probability: Floats = -np.expm1(draws * np.log1p(-np.minimum(self._p, 1 - 1e-12)))
        return probability

    def _lru_time(self, rows: float) -> float:
        """Returns for how many draws an LRU cache of `rows` rows keeps an unused row (Che et al. 2002)."""
        low, high = 0.0, 1e18
        for _ in range(200):
            time = (low + high) / 2
            cached = float((self._n * -np.expm1(-self._p * time)).sum())
            low, high = (time, high) if cached < rows else (low, time)
        return low


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
    def distinct(self, draws: float) -> float:
        """See `Skew.distinct`."""
        steps = self._steps(self._second, draws)
        return float(np.mean([len(np.unique(step)) for step in steps])) * self._beyond(draws)

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a process plans a few tables
    def missing(self, draws: float, rows: float) -> float:
        """See `Skew.missing`."""
        cache: collections.OrderedDict[int, None] = collections.OrderedDict()
        counted = []
        for part in (self._first[-_MOST_SIMULATED // 2 :], self._second[: _MOST_SIMULATED // 2]):
            counted = [self._use(cache, step.tolist(), rows) for step in self._steps(part, draws)]
        return float(np.mean(counted)) * self._beyond(draws)

    def _steps(self, ids: Ids, draws: float) -> list[Ids]:
        """Returns whole steps of `draws` ids; one smaller one, if there are fewer ids."""
        n = min(max(1, round(draws)), len(ids))
        return [ids[i : i + n] for i in range(0, len(ids) - n + 1, n)]

    def _beyond(self, draws: float) -> float:
        """Returns the ratio of distinct ids of a step to those of the largest steps that the sample has."""
        n = min(max(1, round(draws)), len(self._second))
        return self._law.distinct(draws) / self._law.distinct(n) if draws > n else 1.0

    @staticmethod
    def _use(cache: collections.OrderedDict[int, None], ids: list[int], rows: float) -> int:
        """Uses the rows of a step in an LRU cache, and returns how many distinct ones it did not have."""
        missing = 0
        for key in ids:
            if key in cache:
                cache.move_to_end(key)
            else:
                cache[key] = None
                missing += 1
        while len(cache) > rows:
            cache.popitem(last=False)
        return missing

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a process plans a few tables
    def hit_rate(self, rows: float, policy: str) -> float:
        """See `Skew.hit_rate`."""
        if policy == "lfu":
            return float((self._places < rows).mean())
        ids = self._ids[-_MOST_SIMULATED:].tolist()
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
