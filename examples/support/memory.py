"""Measures the memory of processes as proportional set sizes (PSS) from /proc, which count shared pages once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)$")


def process_pss(pid: int | str = "self") -> int:
    """Returns the PSS of a process, in bytes."""
    return _sum_pss(Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())


def mappings_pss(folder: str | os.PathLike[str], pid: int | str = "self") -> int:
    """Returns the PSS of the files in `folder` that a process maps, in bytes."""
    wanted = os.fspath(folder).rstrip("/") + "/"
    kept: list[str] = []
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        header = _MAPPING.match(line)
        if header:
            inside = header[1].startswith(wanted)
        elif inside:
            kept.append(line)
    return _sum_pss(kept)


def disk_bytes(folder: str | os.PathLike[str]) -> int:
    """Returns the size of the blocks that the files in `folder` occupy, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())


def _sum_pss(lines: Iterable[str]) -> int:
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def readable(size: float) -> str:
    """Formats a number of bytes with a binary unit: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
