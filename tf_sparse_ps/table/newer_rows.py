"""Tables with rows that are newer on a device than in the table.

The process that owns the device writes these rows to the table before it reads the table. Other processes see a file
next to the table, which records the step since which rows on the device are newer.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol

from tf_sparse_ps.folders import read_regular


class Holder(Protocol):
    """An object that keeps newer rows of a table."""

    def flush(self) -> None:
        """Writes the rows that are newer to the table."""


_holders: weakref.WeakValueDictionary[str, Holder] = weakref.WeakValueDictionary()


def register(path: str, holder: Holder) -> None:
    """Has `holder` flushed before this process reads the table at a path, as long as the holder exists."""
    _holders[path] = holder


def flush(path: str) -> None:
    """Writes the newer rows of this process to the table at a path, which is about to be read."""
    holder = _holders.get(path)
    if holder is not None:
        holder.flush()


def dirty_since(path: str) -> int | None:
    """Returns the step since which a device has newer rows of the table at a path, or None if no device has any.

    If the device's process was killed, the newer rows are lost, and the step is the one since which they were newer.
    """
    try:
        with read_regular(_note_file(path)) as file:
            text = file.read(32).decode(errors="replace")
    except FileNotFoundError:
        return None
    return int(text) if text.strip().isdigit() else 0  # the writer was killed while it wrote the file


def accept(path: str) -> None:
    """Accepts the rows of the table at a path as the current ones. Rows that were newer on a device are lost."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_note_file(path))


def _note_file(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".newer-{name}")
