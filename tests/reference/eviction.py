"""A plain simulation of eviction. It shares no code with the package: it follows docs/vocabularies.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

U = np.uint64
STRIDE = 0x9E3779B97F4A7C15
ALL = 2**64 - 1


def hashes(keys: np.ndarray, seed: int) -> np.ndarray:
    """Returns the hashes of keys, uint64[n], under the seed of a table's index."""
    h = keys.astype(np.int64).view(U) ^ U(seed)
    h ^= h >> U(33)
    h *= U(0xFF51AFD7ED558CCD)
    h ^= h >> U(33)
    h *= U(0xC4CEB9FE1A85EC53)
    return h ^ (h >> U(33))


@dataclasses.dataclass
class Evictions:
    """The live keys of a table and their uses.

    Attributes:
      index_seed: The seed of the table's index.
      unused_steps: As for tsps.Eviction; 0: None.
      max_rows: The bound of this table; 0: None.
      policy: "lru" or "lfu".
      half_life: As for tsps.Eviction.
      keep: As for tsps.Eviction.
      uses: The last step and the count of each live key.
      unused: The number of rows that were evicted because they were unused.
      excess: The number of rows that were evicted because there were too many.
    """

    index_seed: int
    unused_steps: int = 0
    max_rows: int = 0
    policy: str = "lru"
    half_life: int = 10_000
    keep: frozenset[int] = frozenset()
    uses: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    unused: int = 0
    excess: int = 0

    def step(self, number: int, trained: Iterable[int]) -> list[int]:
        """Makes a step that trains these keys, each given once. Returns the keys that it evicts."""
        keys = set(trained)
        evicted = self._choose(number, keys)
        for key in evicted:
            del self.uses[key]
        for key in keys:
            self.uses[key] = (number, self._count(key, number) + 256)
        return evicted

    def _count(self, key: int, now: int) -> int:
        step, count = self.uses.get(key, (now, 0))
        return count >> (now // self.half_life - step // self.half_life)

    def _choose(self, now: int, keys: set[int]) -> list[int]:
        live = np.array(list(self.uses), np.int64)
        fresh = len(keys - self.uses.keys())
        excess = max(0, len(live) + fresh - self.max_rows) if self.max_rows else 0
        wanted = min(excess, fresh + 1024)
        looked_at = max(1024, 4 * wanted)
        while True:
            span = ALL if looked_at >= len(live) else ALL // len(live) * looked_at
            hash_of = hashes(live, self.index_seed)
            near = hash_of - U(now * STRIDE % 2**64) <= U(span)
            candidates = [
                (key, h)
                for key, h in zip(live[near].tolist(), hash_of[near].tolist(), strict=True)
                if key not in keys and key not in self.keep
            ]
            old = [key for key, _ in candidates if self.unused_steps and now - self.uses[key][0] >= self.unused_steps]
            if len(candidates) >= wanted or looked_at >= len(live):
                break
            looked_at *= 4
        order = {"lru": lambda step, count: (step, count), "lfu": lambda step, count: (count, step)}[self.policy]
        aged = set(old)
        others = sorted(
            (*order(self.uses[key][0], self._count(key, now)), h, key) for key, h in candidates if key not in aged
        )
        more = [key for *_, key in others[: max(0, wanted - len(old))]]
        self.unused += len(old)
        self.excess += len(more)
        return old + more
