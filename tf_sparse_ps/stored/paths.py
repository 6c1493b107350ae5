"""`kind_of` tells a group, a table, a sparse-parameter file, a checkpoint and a served version apart by their paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from tf_sparse_ps.checkpoints import manifest
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.errors import AccessError, NotFoundError
from tf_sparse_ps.folders import read_regular
from tf_sparse_ps.monitoring import own_groups
from tf_sparse_ps.serving import version as versions
from tf_sparse_ps.table.parameter_files import MAGIC

Kind = Literal["group", "table", "parameter_file", "checkpoint", "version"]
PARAMETER_FILE = ".tfsps"


def kind_of(path: str | os.PathLike[str]) -> tuple[Kind, Path] | None:
    """Finds out the kind of what is at a path. Reads no table.

    Args:
      path: The path.

    Returns:
      The kind, and the absolute path; for a directory of checkpoints or versions, that of the newest one. None: it is
      something else.

    Raises:
      NotFoundError: There is nothing at this path.
      AccessError: This user may not read it.
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
    return None


def _is_parameter_file(path: Path) -> bool:
    with read_regular(path) as stream:
        return stream.read(len(MAGIC)) == MAGIC or path.suffix == PARAMETER_FILE
