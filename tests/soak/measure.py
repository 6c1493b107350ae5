"""The resources that a process holds, and their growth."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_: ClassVar[Any] = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


_LIBC = ctypes.CDLL(None)
_LIBC.mallinfo2.restype = _MallInfo2


@dataclasses.dataclass(frozen=True)
class Held:
    """The resources that this process holds after a garbage collection.

    Attributes:
      allocated: The bytes that `malloc` has handed out, in all arenas. PYTHONMALLOC=malloc includes Python's objects.
      resident: The anonymous bytes in memory, after free memory was returned.
      descriptors: The number of open files.
      threads: The number of threads.
      mappings: The number of lines of /proc/self/maps that name a file.
      shared: The number of files in the folders of tables.
      shared_bytes: The sizes of these files.
    """

    allocated: int
    resident: int
    descriptors: int
    threads: int
    mappings: int
    shared: int
    shared_bytes: int


# Everything except memory, whose growth is measured along a line.
COUNTS = ("descriptors", "threads", "mappings", "shared", "shared_bytes")


def held(folder: str) -> Held:
    """Measures this process.

    Args:
      folder: The folder of the job's tables, as in TFSPS_DIR.
    """
    gc.collect()
    _LIBC.malloc_trim(0)
    memory = _LIBC.mallinfo2()
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file if ":" in line)
    with open("/proc/self/maps") as file:
        mappings = sum("/" in line for line in file)
    files = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    return Held(
        allocated=memory.uordblks + memory.hblkhd,
        resident=int(status["RssAnon"].split()[0]) * 1024,
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=int(status["Threads"]),
        mappings=mappings,
        shared=len(files),
        shared_bytes=sum(os.stat(path).st_size for path in files),
    )


def slope(values: Sequence[float]) -> float:
    """Returns the growth of values from one to the next, by least squares."""
    return float(np.polyfit(np.arange(len(values)), np.asarray(values, np.float64), 1)[0])
