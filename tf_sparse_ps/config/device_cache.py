"""`DeviceCache`: rows of a table that stay on a device."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_sparse_ps.config.plain_numbers import check_integer, make_plain

POLICIES = ("admission", "lru")
_MOST_ROWS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class DeviceCache:
    """The cache of a table on a device: rows that are used often are looked up and trained there, others on the host.

    Attributes:
      rows: The number of rows on the device; under a strategy with several devices, on each of them. A row takes the
        floats of the embedding and of the optimizer's slots, in the device's memory.
      device: TensorFlow's name of the device: "GPU:0", "CPU:1". None: the first GPU of TensorFlow, or the CPU if it has
        none; under a tf.distribute strategy, its devices, which divide the keys among them.
      policy: "admission": a row moves to the device when its key is used more often than the key whose row it evicts;
        until then the row is read and updated on the host. "lru": the rows of every batch move to the device, and
        evict the least recently used rows.
      flush_every: The number of steps between two writes of the device's newer rows to the host. None: they are written
        only when a reader asks for them. A kill loses rows that were not written (docs/device-cache.md).

    Raises:
      ValueError: A field is out of range. The message gives the reason.

    Example:
      tsps.Embedding(10_000_000, 64, cache=tsps.DeviceCache(rows=1_000_000))
    """

    rows: int
    device: str | None = None
    policy: str = "admission"
    flush_every: int | None = None

    def __post_init__(self) -> None:
        make_plain(self, "rows", "flush_every")
        check_integer("rows", self.rows, 1, _MOST_ROWS)
        if self.device is not None and (not isinstance(self.device, str) or not self.device):
            raise ValueError(
                f'`device` must be a TensorFlow device name, such as "GPU:0". Received: device={self.device!r}'
            )
        if self.policy not in POLICIES:
            raise ValueError(f"`policy` must be one of {', '.join(POLICIES)}. Received: policy={self.policy!r}")
        if self.flush_every is not None and not _is_count(self.flush_every):
            raise ValueError(
                f"`flush_every` must be a number of steps, at least 1. Received: flush_every={self.flush_every!r}"
            )

    def get_config(self) -> dict[str, Any]:
        """Returns a JSON-serialisable dict."""
        return dataclasses.asdict(self)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
