"""Recognises Keras initializers and constraints, in any form that Keras accepts.

The forms are a name, a dict that `serialize` returned, an object, a class and, where Keras accepts it, any callable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def name_and_config(identifier: Any, role: str, aliases: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Returns the class name in lower case and the arguments; the name is "" if the object is not Keras's own.

    Args:
      identifier: The object in any of its forms, but not None.
      role: The word for it in messages: "an initializer", "a constraint".
      aliases: A map from other names that Keras accepts to class names, all in lower case.

    Raises:
      ValueError: The identifier is none of the forms.
    """
    if isinstance(identifier, str):
        return aliases.get(identifier.lower(), identifier.lower().replace("_", "")), {}
    if isinstance(identifier, dict):
        if "class_name" not in identifier:
            raise ValueError(f"{role}'s dict must have a `class_name`. Received: {identifier}")
        if identifier.get("registered_name") not in (None, identifier["class_name"]):
            return "", {}
        name = name_and_config(identifier["class_name"], role, aliases)[0]
        return name, dict(identifier.get("config") or {})
    if isinstance(identifier, type):
        return name_and_config(identifier(), role, aliases)
    if not callable(identifier):
        raise ValueError(f"{role} must be a name, a dict or callable. Received: {identifier!r}")
    cls = type(identifier)
    if cls.__module__.split(".")[0] in ("keras", "tf_keras") and hasattr(identifier, "get_config"):
        return cls.__name__.lower(), identifier.get_config()
    return "", {}


def serialize(identifier: Any, group: str) -> Any:
    """Returns a JSON-serialisable form. Names and dicts stay as they are; `keras.GROUP.serialize` converts objects."""
    if identifier is None or isinstance(identifier, str | dict):
        return identifier
    from tf_sparse_ps._compat._keras import keras  # imports TensorFlow, which the store does not need

    return getattr(keras, group).serialize(identifier)
