"""The policies that the tables of a named job had in its last run, in a file next to each table.

The core keeps no policy: a job may start again with another one, and then reports what has changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps.folders import Folder, Trust


def replace(table_path: str, policies: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Stores the policies of a table. Only the leader calls it.

    Args:
      table_path: The path of the table. Its folder belongs to this user.
      policies: The result of `TableConfig.policies`.

    Returns:
      The policies that were stored before; None if there were none.
    """
    parent, name = os.path.split(table_path)
    file, new_file = f".policies-{name}", f".policies-{name}.new"
    with Folder.open(parent, Trust.OWN) as folder:
        before = _read(folder, file)
        if before != policies:
            descriptor = folder.open_file(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(policies, stream)
            folder.rename(new_file, file)
    return before


def read(table_path: str) -> Mapping[str, Any] | None:
    """Returns the policies that are stored for a table; None if there are none.

    Args:
      table_path: The path of the table. Its folder belongs to this user.
    """
    parent, name = os.path.split(table_path)
    with Folder.open(parent, Trust.OWN) as folder:
        return _read(folder, f".policies-{name}")


def _read(folder: Folder, file: str) -> Mapping[str, Any] | None:
    try:
        with os.fdopen(folder.open_file(file, os.O_RDONLY), encoding="utf-8") as stream:
            stored = json.load(stream)
    except (FileNotFoundError, ValueError):
        return None
    return stored if isinstance(stored, dict) else None
