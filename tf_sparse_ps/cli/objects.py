"""`find` tells a group, a table, a sparse-parameter file, a checkpoint and a served version apart by their paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_sparse_ps.checkpoints import manifest, stored_checkpoint
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.cli import groups
from tf_sparse_ps.cli.contents import CheckpointTable, Content, FileTable, LiveTable, ServedTable
from tf_sparse_ps.errors import AccessError, InvalidArgumentError, NotFoundError, UnsupportedError
from tf_sparse_ps.folders import read_regular
from tf_sparse_ps.monitoring import own_groups
from tf_sparse_ps.serving import version as versions
from tf_sparse_ps.serving.version import Version
from tf_sparse_ps.table.groups import open_group, plain_name
from tf_sparse_ps.table.parameter_files import MAGIC


class StoredObject:
    """A group, a table, a file, a checkpoint or a version, with its tables.

    Attributes:
      path: The path; for a directory of checkpoints or versions, that of the newest one.
      kind: "group", "table", "parameter_file", "checkpoint" or "version".
      step: The step that it has.
      facts: Values that `inspect` shows besides the tables. They depend on the kind.
      tables: Its tables.
      sketches: The counts of keys without a row that a checkpoint has, for `diff`.
    """

    sketches: Sequence[Content] = ()

    def __init__(self, path: Path, kind: str, step: int, facts: dict[str, Any], tables: Sequence[Content]) -> None:
        """Callers use `open_object`."""
        self.path, self.kind, self.step, self.facts, self.tables = path, kind, step, facts, tables

    def table(self, name: str | None) -> Content:
        """Returns a table by its name; None: the only table.

        Raises:
          InvalidArgumentError: There are several tables, and `name` is None.
          NotFoundError: There is no such table.
        """
        names = [table.name for table in self.tables]
        if name is None:
            if len(names) != 1:
                raise InvalidArgumentError(f"{self.path} has {len(names)} tables, {names}. Choose one with --table")
            return self.tables[0]
        for table in self.tables:
            if name in (table.name, plain_name(table.name)):
                return table
        raise NotFoundError(f"{self.path} has no table {name!r}. It has {names}")


def find(path: Path) -> tuple[str, Path]:
    """Finds out the kind of the object at a path. Reads no table.

    Args:
      path: The path.

    Returns:
      The kind of `StoredObject`, and the path; for a directory of checkpoints or versions, that of the newest one.

    Raises:
      NotFoundError: There is nothing at this path.
      AccessError: This user may not read it.
      UnsupportedError: It is something else.
    """
    path = Path(os.path.abspath(path))
    if not os.path.lexists(path):
        raise NotFoundError(f"{path} does not exist")
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise AccessError(f"{path} cannot be read by this user. Ask its owner, or run the command as that user")
    if path.is_file() and _is_parameter_file(path):
        return "parameter_file", path
    if path.is_dir():
        if own_groups.is_group(path):
            return "group", path
        if own_groups.is_group(path.parent) and (path / "config").exists():
            return "table", path
        if versions.is_complete(path):
            return "version", path
        if CheckpointDirectory.names(path) or (path / manifest.NAME).exists():
            return "checkpoint", path
        for folder in CheckpointDirectory(path).find():
            return "checkpoint", folder.path
        for _, version in versions.complete(path):
            return "version", version
    raise UnsupportedError(
        f"{path} is no group, table, sparse-parameter file, checkpoint or served version, and no directory of "
        "checkpoints or versions. Name one of these"
    )


def open_object(path: Path) -> StoredObject:
    """Opens the object at a path. Reads the headers of files.

    Raises:
      NotFoundError, UnsupportedError: As `find`.
      DamagedFileError: A file that is read is damaged.
      AccessError: A file belongs to another user.
    """
    kind, path = find(path)
    return _OPEN[kind](path)


def _group(path: Path) -> StoredObject:
    group = open_group(os.fspath(path))
    info = group.info()
    tables = [LiveTable(path / table["name"]) for _, table, _ in own_groups.rows_of(group)]
    return StoredObject(path, "group", info["step"], _facts_of_group(info), tables)


def _table(path: Path) -> StoredObject:
    table = LiveTable(path)
    info = open_group(os.fspath(path.parent)).info()
    return StoredObject(path, "table", info["step"], _facts_of_group(info), [table])


def _facts_of_group(info: dict[str, Any]) -> dict[str, Any]:
    pid, alive = int(info["writer_pid"]), bool(info["writer_alive"])
    return {
        "uuid": info["uuid"],
        "owner": {"pid": pid or None, "alive": alive, "since": groups.started(pid) if alive else None},
        "other_changes": info["version"],
        "unfinished": info["unfinished"],
        "bytes": info["bytes"],
    }


def _parameter_file(path: Path) -> StoredObject:
    table = FileTable(path)
    return StoredObject(path, "parameter_file", table.step, {"bytes": path.stat().st_size}, [table])


def _checkpoint(path: Path) -> StoredObject:
    checkpoint = stored_checkpoint.look(path)
    content = checkpoint.manifest
    tables = [CheckpointTable(checkpoint, number) for number in range(len(content.row_tables))]
    facts = {
        "id": content.id,
        "job": content.job,
        "epoch": content.epoch,
        "batch": content.batch,
        "ranks": content.ranks,
        "nodes": content.nodes,
        "node": content.node,
        "builds_on": [link.name for link in content.chain],
        "variables": len(content.variables),
        "versions": content.versions,
        "bytes": sum(entry.size for entry in content.files),
    }
    stored = StoredObject(path, "checkpoint", content.step, facts, tables)
    stored.sketches = [CheckpointTable(checkpoint, at) for at in range(len(tables), len(content.tables))]
    return stored


def _version(path: Path) -> StoredObject:
    version = Version(path)
    content = version.manifest
    facts = {
        "id": content.id,
        "variables": len(content.variables),
        "versions": content.versions,
        "bytes": sum(file.bytes for file in content.table_files) + sum(file.bytes for file in content.others),
    }
    tables = [ServedTable(version, entry) for entry in content.tables]
    return StoredObject(path, "version", content.step, facts, tables)


_OPEN = {
    "group": _group,
    "table": _table,
    "parameter_file": _parameter_file,
    "checkpoint": _checkpoint,
    "version": _version,
}


def _is_parameter_file(path: Path) -> bool:
    with read_regular(path) as stream:
        return stream.read(len(MAGIC)) == MAGIC or path.suffix == ".tfsps"
