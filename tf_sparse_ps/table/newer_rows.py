"""Tables of which rows elsewhere, on a device, are newer.

In the process that has them they are given back before anyone reads. Other processes see a file beside the table, which
says since which step there are some.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol

from tf_sparse_ps.folders import read_regular


class Holder(Protocol):
    """Who has such rows."""

    def flush(self) -> None:
        """Gives the table those that are newer."""


_holders: weakref.WeakValueDictionary[str, Holder] = weakref.WeakValueDictionary()


def register(path: str, holder: Holder) -> None:
    """From now on `holder`, as long as it is there, is asked before the table at a path is read in this process."""
    _holders[path] = holder


def flush(path: str) -> None:
    """The table at a path is about to be read."""
    holder = _holders.get(path)
    if holder is not None:
        holder.flush()


def dirty_since(path: str) -> int | None:
    """The step since which rows of the table at a path are newer on a device, or were when that was lost; or None."""
    try:
        with read_regular(_note(path)) as file:
            text = file.read(32).decode(errors="replace")
    except FileNotFoundError:
        return None
    return int(text) if text.strip().isdigit() else 0  # a writer that was killed just then


def accept(path: str) -> None:
    """The rows that the table at a path has are the ones that count: others are lost."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_note(path))


def _note(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".newer-{name}")
