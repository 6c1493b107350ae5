"""`DeviceCache`: rows of a table that stay on a device."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_sparse_ps.config.plain_numbers import make_plain

POLICIES = ("admission", "lru")
_MOST_ROWS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class DeviceCache:
    """Rows that are used often stay on a device, where they are looked up and trained; the others on the host.

    Attributes:
      rows: How many; under a strategy with several devices, on each. A row takes the floats of the embedding and of the
        optimizer's slots, in the device's memory.
      device: Where, as TensorFlow names it: "GPU:0", "CPU:1". None: the first GPU that TensorFlow has, else the CPU;
        under a tf.distribute strategy, its devices, which divide the keys among them.
      policy: "admission": a key's row comes to the device when the key is used more often than the one that has to
        leave for it; until then the row is read and updated on the host. "lru": the rows of every batch come to the
        device, and those that were not used for the longest time leave.
      flush_every: After every so many steps the host is given what is newer on the device. None: only when it is asked
        for: a kill loses what was not (docs/device-cache.md).

    Raises:
      ValueError: A field that cannot work, with the reason.

    Example:
      tsps.Embedding(10_000_000, 64, cache=tsps.DeviceCache(rows=1_000_000))
    """

    rows: int
    device: str | None = None
    policy: str = "admission"
    flush_every: int | None = None

    def __post_init__(self) -> None:
        make_plain(self, "rows", "flush_every")
        if not _is_count(self.rows) or self.rows > _MOST_ROWS:
            raise ValueError(f"`rows` must be an integer, 1 .. {_MOST_ROWS}. Received: rows={self.rows!r}")
        if self.device is not None and (not isinstance(self.device, str) or not self.device):
            raise ValueError(
                f'`device` must be a name of TensorFlow\'s, such as "GPU:0". Received: device={self.device!r}'
            )
        if self.policy not in POLICIES:
            raise ValueError(f"`policy` must be one of {', '.join(POLICIES)}. Received: policy={self.policy!r}")
        if self.flush_every is not None and not _is_count(self.flush_every):
            raise ValueError(
                f"`flush_every` must be a number of steps, at least 1. Received: flush_every={self.flush_every!r}"
            )

    def get_config(self) -> dict[str, Any]:
        """A JSON-serialisable dict."""
        return dataclasses.asdict(self)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def get(cache: Any) -> DeviceCache | None:
    """The cache of a table, from any of its forms.

    Args:
      cache: None, a `DeviceCache`, or what its `get_config` made.

    Raises:
      ValueError: It is none of them.
    """
    if isinstance(cache, dict):
        return DeviceCache(**cache)
    if cache is None or isinstance(cache, DeviceCache):
        return cache
    raise ValueError(f"`cache` must be None or a tsps.DeviceCache. Received: cache={cache!r}")


def serialize(cache: DeviceCache | None) -> dict[str, Any] | None:
    """A JSON-serialisable form for `get`."""
    return None if cache is None else cache.get_config()
