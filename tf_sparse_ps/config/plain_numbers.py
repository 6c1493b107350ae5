"""NumPy's scalars as options: accepted, and kept as Python's own numbers, which JSON and `repr` show."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Returns a NumPy scalar as Python's own number or bool, and anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def make_plain(options: Any, *names: str) -> None:
    """Makes fields of a frozen dataclass plain. Called at the beginning of its `__post_init__`."""
    for name in names:
        object.__setattr__(options, name, plain(getattr(options, name)))
