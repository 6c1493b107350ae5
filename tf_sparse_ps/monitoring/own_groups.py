"""The groups of this user in the folder of tables. A folder of another user and the target of a link are not opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

from tf_sparse_ps import _table
from tf_sparse_ps.errors import AccessError
from tf_sparse_ps.folders import Folder, Trust
from tf_sparse_ps.node import job_folder

_SKETCH = ".sketch"
_SEGMENT_ENTRIES = 4092  # docs/format.md, the index


def open_folder(path: str) -> Folder:
    """Opens the folder of tables.

    Raises:
      AccessError: The folder belongs to another user, or others can replace it.
      FileNotFoundError: It does not exist.
    """
    try:
        folder = Folder.open(path, Trust.OWN)
    except PermissionError as error:
        if isinstance(error, AccessError):
            raise
        raise AccessError(f"{path} cannot be read by this user. Set TFSPS_DIR to a folder of yours") from None
    try:
        folder.check_own()
    except AccessError:
        folder.close()
        raise
    return folder


def paths(folder: str) -> list[str]:
    """Returns the paths of this user's groups in a folder. No folder: no groups.

    Raises:
      AccessError: The folder belongs to another user, or others can replace it.
    """
    try:
        opened = open_folder(folder)
    except FileNotFoundError:
        return []
    found = []
    with opened:
        for name in opened.names():
            path = os.path.join(opened.path, name)
            try:
                status = opened.status(name)
            except FileNotFoundError:  # its job has just ended
                continue
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_own and (is_group(path) or job_folder.is_unnamed(name)):
                found.append(path)
    return sorted(found)


def is_group(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has the files of a group."""
    return any(os.path.lexists(os.path.join(path, name)) for name in ("group", "writer.lock"))


def index_load(stats: dict[str, Any]) -> float:
    """Returns the share of entries of a table's index that are in use, from the sizes of the table."""
    in_memory = stats["rows"] - stats["rows_on_disk"]  # those on disk have an index of their own
    return float(in_memory / (_SEGMENT_ENTRIES * max(stats["segments"], 1)))


def rows_of(group: _table.Group) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yields place, configuration and sizes of each table of a group, without the counts of keys that have no row."""
    infos = {table: group.table_info(table) for table in group.tables()}
    sketches = {info["name"] + _SKETCH for info in infos.values()}
    for table, info in infos.items():
        if info["name"] not in sketches:
            yield table, info, group.stats(table)
