"""Pages of counters as ranks write them (cc/core/group/rank_counters.h), of processes that a test chooses."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from tf_sparse_ps.monitoring import processes
from tf_sparse_ps.node.rank_counters import NAMES

_HEADER = struct.Struct("<QIIqQqqqq")
_MAGIC, _VERSION, _BYTES, _TEXT, _COUNTERS = 0x6E63726173707374, 1, 4096, 512, 1024
GONE = (1 << 22) + 1  # above the largest pid of Linux


class Page:
    """The page of a rank."""

    def __init__(self, group: Path, rank: int, pid: int = GONE, size: int = 2) -> None:
        """Makes the page of a process, or replaces that of an earlier one."""
        process = processes.find(pid)
        self._path = group / f".counters-{rank:04d}"
        self._head = (rank, size, pid, 12345 if process is None else process.started)
        self.values = dict.fromkeys(NAMES, 0)
        self.store()

    def store(self, activity: str = "", updated: float | None = None, **values: int) -> None:
        """Stores counters by name, and the activity."""
        self.values |= values
        rank, size, pid, started = self._head
        page = bytearray(_BYTES)
        updated_ns = int((time.time() if updated is None else updated) * 1e9)
        _HEADER.pack_into(page, 0, _MAGIC, _VERSION, len(NAMES), pid, started, rank, size, rank, updated_ns)
        page[_TEXT : _TEXT + len(activity.encode())] = activity.encode()
        struct.pack_into(f"<{len(NAMES)}Q", page, _COUNTERS, *self.values.values())
        temporary = self._path.with_name(f".{os.getpid()}")
        temporary.write_bytes(page)
        temporary.rename(self._path)

    def add(self, **values: int) -> None:
        """Adds to counters."""
        self.store(**{name: self.values[name] + value for name, value in values.items()})
