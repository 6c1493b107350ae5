"""Keras's small objects, initializers and constraints, in any form in which Keras takes them: what they are.

A form is a name, a dict as `serialize` makes it, an object, a class or, where Keras takes it, any callable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def name_and_config(given: Any, what: str, aliases: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Class name in lower case and arguments; name "" for what is not Keras's own.

    Args:
      given: Any form but None.
      what: "an initializer" or the like, for messages.
      aliases: From other names that Keras knows, in lower case, to class names in lower case.

    Raises:
      ValueError: It is none of the forms.
    """
    if isinstance(given, str):
        return aliases.get(given.lower(), given.lower().replace("_", "")), {}
    if isinstance(given, dict):
        if "class_name" not in given:
            raise ValueError(f"{what}'s dict must have a `class_name`. Received: {given}")
        if given.get("registered_name") not in (None, given["class_name"]):
            return "", {}
        return name_and_config(given["class_name"], what, aliases)[0], dict(given.get("config") or {})
    if isinstance(given, type):
        return name_and_config(given(), what, aliases)
    if not callable(given):
        raise ValueError(f"{what} must be a name, a dict or callable. Received: {given!r}")
    cls = type(given)
    if cls.__module__.split(".")[0] in ("keras", "tf_keras") and hasattr(given, "get_config"):
        return cls.__name__.lower(), given.get_config()
    return "", {}


def serialize(given: Any, group: str) -> Any:
    """A JSON-serialisable form: names and dicts stay, objects go through `keras.GROUP.serialize`."""
    if given is None or isinstance(given, str | dict):
        return given
    from tf_sparse_ps._compat._keras import keras  # TensorFlow, too, which the store does not need

    return getattr(keras, group).serialize(given)
