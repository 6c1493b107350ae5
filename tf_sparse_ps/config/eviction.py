"""`Eviction`: which rows the steps of a table evict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from tf_sparse_ps.config.plain_numbers import check_integer, make_plain
from tf_sparse_ps.keys import fingerprint

POLICIES = ("lru", "lfu")
_MOST = 2**62
_MOST_STEPS = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class Eviction:
    """The rows that a table evicts, in the commits of its steps: alike on all machines, and after a restart.

    An evicted key reads its initial value again. Only training counts as use of a row, lookups do not. A step never
    evicts a row that it trains. docs/vocabularies.md tells how to choose the numbers.

    Attributes:
      unused_steps: Rows that no step has trained for this many steps are evicted, soon after. None: rows do not age.
      max_rows: The most rows of the table. When a step adds rows beyond it, it evicts as many others. The table is then
        never too full for a step, unless the step itself has more keys. A sharded table has an equal part of it on each
        machine. None: any number.
      policy: The rows that `max_rows` evicts: "lru", those that were trained last the longest ago; "lfu", those that
        the fewest steps have trained.
      half_life: The number of steps after which a step counts half, for "lfu".
      keep: Keys that are never evicted, integers or strings, for example that of unknown users.
      custom_initializer: Whether a table may evict rows whose initial values come from a Keras initializer that makes a
        whole matrix. Evicted rows do not return to those values, they return as zeros.

    Raises:
      ValueError: A field is out of range. The message gives the reason.

    Example:
      tsps.Embedding(None, 16, eviction=tsps.Eviction(unused_steps=100_000, max_rows=10_000_000))
    """

    unused_steps: int | None = None
    _: dataclasses.KW_ONLY
    max_rows: int | None = None
    policy: str = "lru"
    half_life: int = 10_000
    keep: tuple[int, ...] = ()
    custom_initializer: bool = False

    def __post_init__(self) -> None:
        make_plain(self, "unused_steps", "max_rows", "half_life")
        for name, most in (("unused_steps", _MOST_STEPS), ("max_rows", _MOST), ("half_life", _MOST_STEPS)):
            value = getattr(self, name)
            if value is not None or name == "half_life":
                check_integer(name, value, 1, most)
        if self.unused_steps is None and self.max_rows is None:
            raise ValueError("an eviction needs `unused_steps`, `max_rows`, or both. Received neither")
        if self.policy not in POLICIES:
            raise ValueError(f"`policy` must be one of {', '.join(POLICIES)}. Received: policy={self.policy!r}")
        object.__setattr__(self, "keep", _keys(self.keep))
        if self.max_rows is not None and len(self.keep) >= self.max_rows:
            raise ValueError(
                f"`keep` has {len(self.keep)} keys and `max_rows` is {self.max_rows}: no row could be evicted for "
                "another. Keep fewer keys, or raise max_rows"
            )

    def max_rows_of(self, nodes: int) -> int | None:
        """Returns `max_rows` of each of the machines that share the rows."""
        return None if self.max_rows is None else max(1, self.max_rows // nodes)

    def get_config(self) -> dict[str, Any]:
        """Returns a JSON-serialisable dict."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "_"}
        return {**config, "keep": list(self.keep)}


def _keys(keep: Any) -> tuple[int, ...]:
    if isinstance(keep, str | bytes) or not isinstance(keep, Iterable):
        raise ValueError(f"`keep` must be a sequence of integers or strings. Received: keep={keep!r}")
    items = [item.item() if isinstance(item, np.generic) else item for item in keep]
    if any(isinstance(item, str | bytes) for item in items):
        if not all(isinstance(item, str | bytes) for item in items):
            raise ValueError(f"`keep` has integers and strings. Received: keep={keep!r}")
        items = fingerprint(items).tolist()
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool) or not -(2**63) <= item < 2**63:
            raise ValueError(f"`keep` must have integers of 64 bits, or strings. Received: {item!r}")
    return tuple(sorted(set(items)))
