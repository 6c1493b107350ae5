"""Tables of this process of which rows elsewhere, on a device, are newer: they are given back before anyone reads."""

from __future__ import annotations

import weakref
from typing import Protocol


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
