"""The groups of tables in a folder: whose they are, whether a process writes them, and what they contain.

A folder of another user and the target of a link are never opened.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tf_sparse_ps import _table
from tf_sparse_ps.errors import TableError
from tf_sparse_ps.folders import Folder
from tf_sparse_ps.monitoring import own_groups
from tf_sparse_ps.node import job_folder

_JOB = re.compile(r"(.+)-n(\d+)")
_DEFAULT = "tf_sparse_ps-"


def in_folder(path: str) -> list[dict[str, Any]]:
    """Describes the groups of a folder, and links and folders of other users in it.

    Args:
      path: The folder.

    Returns:
      The facts about each, as `schemas/ls.json` describes them. No folder: no groups.

    Raises:
      AccessError: The folder belongs to another user, or others can replace it.
    """
    try:
        folder = own_groups.open_folder(path)
    except FileNotFoundError:
        return []
    with folder:
        return [facts for name in folder.names() if (facts := _describe(folder, name)) is not None]


def of_others(path: str) -> list[dict[str, Any]]:
    """Describes the default folders of other users beside the default folder `path`. They are not opened."""
    parent, name = os.path.split(os.path.abspath(path))
    found = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            user = entry.name.removeprefix(_DEFAULT)
            if user != entry.name and user.isdecimal() and entry.name != name:
                with contextlib.suppress(OSError):
                    found.append(_foreign(entry.path, entry.stat(follow_symlinks=False)))
    return found


def _describe(folder: Folder, name: str) -> dict[str, Any] | None:
    path = os.path.join(folder.path, name)
    try:
        status = folder.status(name)
    except FileNotFoundError:
        return None  # its job has just ended
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_uid != os.geteuid()):
        return _foreign(path, status)
    if not stat.S_ISDIR(status.st_mode) or not (own_groups.is_group(path) or job_folder.is_unnamed(name)):
        return None
    facts = _facts(path, status)
    try:
        folder.own(name).close()
        facts |= _state(path, name)
        facts |= _content(path)
    except (TableError, OSError) as error:
        facts |= {"state": "damaged", "fault": str(error)}
    return facts


def _facts(path: str, status: os.stat_result) -> dict[str, Any]:
    name = os.path.basename(path)
    match = _JOB.fullmatch(name)
    return {
        "name": name,
        "path": path,
        "state": "damaged",
        "fault": None,
        "user": _user(status.st_uid),
        "job": match[1] if match and not job_folder.is_unnamed(name) else None,
        "node": int(match[2]) if match else None,
        "owner": None,
        "step": None,
        "rows": None,
        "bytes": None,
        "bytes_on_disk": None,
        "created": None,
        "written": None,
        "tables": [],
    }


def _foreign(path: str, status: os.stat_result) -> dict[str, Any]:
    is_link = stat.S_ISLNK(status.st_mode)
    return _facts(path, status) | {
        "state": "link" if is_link else "foreign",
        "fault": "a symbolic link, which is not followed" if is_link else "a folder of another user",
        "job": None,
        "node": None,
    }


def _state(path: str, name: str) -> dict[str, Any]:
    alive = _table.has_writer(path)
    times = sorted(_times(path))
    return {
        "state": "running" if alive else "remains" if job_folder.is_unnamed(name) else "kept",
        "owner": {"pid": None, "alive": alive, "since": None},
        "created": _iso(times[0]) if times else None,
        "written": _iso(times[-1]) if times else None,
    }


def _content(path: str) -> dict[str, Any]:
    group = _table.Group.open(path)
    info = group.info()
    pid, alive = int(info["writer_pid"]), bool(info["writer_alive"])
    tables = [
        {
            "name": table["name"],
            "rows": stats["rows"],
            "bytes": stats["bytes"],
            "bytes_on_disk": stats["bytes_on_disk"],
            "shard": {"node": table["node"], "nodes": table["nodes"]} if table["nodes"] else None,
        }
        for _, table, stats in own_groups.rows_of(group)
    ]
    return {
        "owner": {"pid": pid or None, "alive": alive, "since": started(pid) if alive else None},
        "step": info["step"],
        "rows": sum(table["rows"] for table in tables),
        "bytes": info["bytes"],
        "bytes_on_disk": sum(table["bytes_on_disk"] for table in tables),
        "tables": tables,
    }


def _times(path: str) -> Iterator[float]:
    """Yields when the files of a group were written: its own ones, of which the undo log is written in each step."""
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    yield entry.stat(follow_symlinks=False).st_mtime


def started(pid: int) -> str | None:
    """Returns when a process of this machine started, or None if that is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, IndexError, ValueError):
        return None
    return _iso(time.time() - up_s + since_boot_s)


def seconds_since(moment: str | None) -> float | None:
    """Returns the seconds since a time that `in_folder` or `started` returned."""
    return None if moment is None else time.time() - datetime.datetime.fromisoformat(moment).timestamp()


def _iso(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).isoformat(timespec="seconds")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
