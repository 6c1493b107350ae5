"""Rates of a disk without the kernel's cache: reads of a page, at several depths, and long reads and writes."""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PAGE = 4096
_LONG = 1 << 20
_FILE = 1 << 30
_QUICK_FILE = 1 << 24
_SECONDS = 1.5


def measure(folder: Path, *, quick: bool = False) -> dict[str, tuple[float, str]]:
    """Returns the value and the unit of each figure, by its name."""
    path, size = folder / "rates", _QUICK_FILE if quick else _FILE
    seconds = 0.1 if quick else _SECONDS
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            buffer = mmap.mmap(-1, _LONG)
            buffer.write(os.urandom(_LONG))
            began = time.perf_counter()
            for offset in range(0, size, _LONG):
                os.pwritev(file, [buffer], offset)
            os.fdatasync(file)
            figures = {"long writes": (size / 1e6 / (time.perf_counter() - began), "MB/s")}
            rate = _rate(lambda buffer, offset: os.preadv(file, [buffer], offset), 4, _LONG, size, seconds)
            figures["long reads"] = (rate * _LONG / 1e6, "MB/s")
            for depth in (1, 8, 32):
                rate = _rate(lambda buffer, offset: os.preadv(file, [buffer], offset), depth, _PAGE, size, seconds)
                figures[f"reads of a page, {depth} at once"] = (rate, "reads/s")
            return figures
        finally:
            os.close(file)
    finally:
        path.unlink(missing_ok=True)


def _rate(read: Callable[[mmap.mmap, int], int], threads: int, size: int, file_size: int, seconds: float) -> float:
    counts = [0] * threads
    ends = time.perf_counter() + seconds

    def work(number: int) -> None:
        buffer, draw = mmap.mmap(-1, size), random.Random(number)
        while time.perf_counter() < ends:
            read(buffer, draw.randrange(file_size // size) * size)
            counts[number] += 1

    began = time.perf_counter()
    workers = [threading.Thread(target=work, args=[number]) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)
