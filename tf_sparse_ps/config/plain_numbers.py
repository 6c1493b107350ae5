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


def check_interval(every_steps: Any, every_seconds: Any) -> None:
    """Raises ValueError unless the interval of a callback, of which one of both is None, is a number above 0."""
    if every_steps is not None and (not isinstance(every_steps, int) or isinstance(every_steps, bool)):
        raise ValueError(f"`every_steps` must be an integer. Received: every_steps={every_steps!r}")
    if isinstance(every_seconds, bool) or not isinstance(every_seconds, int | float | None):
        raise ValueError(f"`every_seconds` must be a number of seconds. Received: every_seconds={every_seconds!r}")
    if not (every_steps or every_seconds or 0) > 0:
        name, value = ("every_steps", every_steps) if every_seconds is None else ("every_seconds", every_seconds)
        raise ValueError(f"`{name}` must be above 0. Received: {name}={value!r}")
