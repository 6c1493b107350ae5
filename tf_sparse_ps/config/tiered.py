"""`Tiered`: a table with a part of its rows in memory and the others on a disk."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Literal

from tf_sparse_ps.config.plain_numbers import make_plain
from tf_sparse_ps.urls import local_path

_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]I?B|B?)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Tiered:
    """The storage of a tiered table: rows that are in use, or are used often, are in memory, the others on a disk.

    Attributes:
      path: A directory on a local disk of the machine, which is made if it is missing; `~` stands for the home folder.
        Each table has a folder in it, which is deleted with the table. All folders of the path must belong to root or
        to this user, and other users must not be able to write to them.
      memory: The number of bytes of memory that each table may take on a machine, for all its ranks together: an
        integer, or a text such as "4GiB" or "500 MB".

    Raises:
      ValueError: A field is out of range. The message gives the reason.

    Example:
      tsps.Embedding(None, 64, storage=tsps.Tiered("/nvme/tables", memory="4GiB"))
    """

    path: str | os.PathLike[str]
    memory: int | str

    def __post_init__(self) -> None:
        make_plain(self, "memory")
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise ValueError(f"`path` must be a directory on a disk. Received: path={self.path!r}")
        object.__setattr__(self, "path", local_path(os.path.expanduser(os.fspath(self.path))))
        object.__setattr__(self, "memory", _bytes(self.memory))

    def get_config(self) -> dict[str, Any]:
        """Returns a JSON-serialisable dict."""
        return {"path": self.path, "memory": self.memory}


Storage = Literal["memory"] | Tiered


def get(storage: Any) -> Storage:
    """Returns the storage of a table, given in any of its forms.

    Args:
      storage: "memory", a `Tiered`, or the result of its `get_config`.

    Raises:
      ValueError: The argument is none of these.
    """
    if isinstance(storage, dict):
        return Tiered(**storage)
    if storage == "memory" or isinstance(storage, Tiered):
        return storage
    raise ValueError(f'`storage` must be "memory" or a tsps.Tiered. Received: storage={storage!r}')


def serialize(storage: Storage) -> Any:
    """Returns a JSON-serialisable form, which `get` reads."""
    return storage.get_config() if isinstance(storage, Tiered) else storage


def _bytes(memory: Any) -> int:
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = _SIZE.fullmatch(memory.strip()) if isinstance(memory, str) else None
    unit = match[2].upper() if match else None
    factor = _UNITS.get("" if unit == "B" else unit) if unit is not None else None
    if match is None or factor is None or float(match[1]) * factor < 1:
        raise ValueError(f'`memory` must be a number of bytes, or a text such as "4GiB". Received: memory={memory!r}')
    return int(float(match[1]) * factor)
