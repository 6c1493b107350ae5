"""Parts of a configuration that may be absent: a dataclass with `get_config`, or None."""

from __future__ import annotations

from typing import Any, TypeVar

Part = TypeVar("Part")


def get(kind: type[Part], name: str, value: Any) -> Part | None:
    """Returns a part of a configuration, given in any of its forms.

    Args:
      kind: The class of the part.
      name: The name of the argument, for messages.
      value: None, an object of the class, or the result of its `get_config`.

    Raises:
      ValueError: The value is none of these.
    """
    if isinstance(value, dict):
        return kind(**value)
    if value is None or isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise ValueError(f"`{name}` must be None or {article} tsps.{kind.__name__}. Received: {name}={value!r}")


def serialize(part: Any) -> dict[str, Any] | None:
    """Returns a JSON-serialisable form of a part or None, which `get` reads."""
    return None if part is None else part.get_config()
