"""Eviction and admission of one node's part of a table, in the model. It does not use the package."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from admission import Admissions
from eviction import Evictions

from tests.oracle import data
from tests.oracle.options import Options

UNUSED = "unused"  # the planted fault of a model that lets rows age a step longer


@dataclasses.dataclass
class Policies:
    """The policies of one node's part of a table. Keys are ids, not positions.

    Attributes:
      evictions: The uses of the rows; None: the table does not evict.
      admissions: The counts of keys without a row; None: all keys get one.
    """

    evictions: Evictions | None
    admissions: Admissions | None

    @classmethod
    def of(cls, options: Options, t: int, fault: str = "") -> Policies:
        """Returns the policies of a new table."""
        table, shards = options.tables[t], options.shards(t)
        evictions = admissions = None
        if table.eviction:
            evictions = Evictions(
                0,
                table.unused_steps + (fault == UNUSED),
                table.max_rows // shards,
                table.eviction,
                table.use_half_life,
                frozenset(data.kept(options, t)),
            )
        if table.count:
            admissions = Admissions(0, table.count, table.count_half_life, -(-table.expected_keys // shards))
        return cls(evictions, admissions)

    @property
    def counters(self) -> list[int]:
        """The numbers that `snapshot.COUNTERS` names."""
        evictions, admissions = self.evictions, self.admissions
        evicted = [0, 0] if evictions is None else [evictions.unused, evictions.excess]
        return [*evicted, *([0, 0] if admissions is None else [admissions.admitted, admissions.dropped])]

    @property
    def has_counts(self) -> bool:
        """Whether keys without a row have been counted."""
        return self.admissions is not None and bool(self.admissions._counts.any())

    def take_seeds(self, index: int, sketch: int) -> None:
        """Sets the seeds of the hashes, which a job draws."""
        if self.evictions is not None:
            self.evictions.index_seed = index
        if self.admissions is not None:
            self.admissions.index_seed = sketch

    def step(self, number: int, trained: Iterable[int], absent: Mapping[int, int]) -> tuple[set[int], list[int]]:
        """Makes a step.

        Args:
          number: The number of the step.
          trained: The keys that have a gradient.
          absent: The number of ids of all ranks with each of these keys that has no row.

        Returns:
          The keys whose gradients are dropped, and the keys whose rows are evicted.
        """
        dropped = set() if self.admissions is None or not absent else self.admissions.step(number, absent)
        evicted = [] if self.evictions is None else self.evictions.step(number, set(trained) - dropped)
        return dropped, evicted

    def wrote(self, number: int, keys: Iterable[int]) -> None:
        """Records that keys were assigned after a step of this number. Rows that were there keep their uses."""
        if self.evictions is not None:
            for key in keys:
                self.evictions.uses.setdefault(key, (number, 0))

    def erased(self, keys: Iterable[int]) -> None:
        """Records that keys were erased."""
        if self.evictions is not None:
            for key in keys:
                self.evictions.uses.pop(key, None)

    def due(self, number: int) -> list[int]:
        """Evicts all rows that are due after a step of this number, and returns their keys."""
        evictions = self.evictions
        assert evictions is not None
        may_go = {key: use for key, use in evictions.uses.items() if key not in evictions.keep}
        limit = evictions.unused_steps or number + 1
        unused = {key for key, (last, _) in may_go.items() if number - last >= limit}
        excess = len(evictions.uses) - len(unused) - evictions.max_rows if evictions.max_rows else 0

        def order(key: int) -> tuple[int, int, int]:
            last, count = may_go[key]
            count >>= number // evictions.half_life - last // evictions.half_life
            return (last, count, key) if evictions.policy == "lru" else (count, last, key)

        others = sorted(may_go.keys() - unused, key=order)
        keys = [*unused, *others[: max(0, excess)]]
        self.erased(keys)
        return keys

    def uses_of(self, keys: np.ndarray) -> np.ndarray:
        """Returns the uses of keys that have rows, uint32[n, 2]."""
        assert self.evictions is not None
        return np.array([self.evictions.uses[key] for key in keys.tolist()], np.uint32).reshape(-1, 2)
