"""Numbers in options: NumPy scalars become Python's own numbers, which JSON and `repr` show as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Returns a NumPy scalar as a Python number or bool, and any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value


def make_plain(options: Any, *names: str) -> None:
    """Applies `plain` to fields of a frozen dataclass, whose `__post_init__` calls this function first."""
    for name in names:
        object.__setattr__(options, name, plain(getattr(options, name)))


def check_integer(name: str, value: Any, least: int, most: int) -> None:
    """Raises ValueError unless an option is an integer from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"`{name}` must be an integer, {least} .. {most}. Received: {name}={value!r}")
