"""`NodePart`: what the leader of another node has written of a checkpoint, told to rank 0 by a file beside the data.

The leader writes that file last. Rank 0, which waits for it, removes it and names the files in the manifest. Nothing is
sent: collectives belong to the training that goes on meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import zlib
from pathlib import Path

from tf_sparse_ps.checkpoints import fault_points
from tf_sparse_ps.checkpoints.manifest import FileEntry, TablePart
from tf_sparse_ps.errors import DamagedFileError
from tf_sparse_ps.folders import read_regular

_MOST_BYTES = 64 << 20  # of a report
_STALE_S = 5.0  # for so long another machine may see what was


@dataclasses.dataclass(frozen=True)
class NodePart:
    """What one node has written.

    Attributes:
      tables: Of each table, in the model's order.
      files: All of its files.
      error: Why there is nothing of this: the part could not be written; None: it is complete.
    """

    tables: tuple[TablePart, ...]
    files: tuple[FileEntry, ...]
    error: str | None = None

    def report(self, folder: Path, node: int) -> None:
        """Tells rank 0. The files are on the disk.

        Args:
          folder: Of the save.
          node: This one.
        """
        text = json.dumps(dataclasses.asdict(self))
        path = folder / _name_of(node)
        aside = path.with_suffix(".writing")
        aside.write_text(json.dumps({"checksum": zlib.crc32(text.encode()), "content": text}))
        os.rename(aside, path)
        fault_points.reach(fault_points.PART_REPORTED)


def is_there(folder: Path, node: int) -> bool:
    """Whether a node has reported."""
    # A list of names is asked for anew; whether one name is there, a network file system may remember.
    return _name_of(node) in os.listdir(folder)


def take(folder: Path, node: int) -> NodePart:
    """What a node has reported; removes the report.

    Raises:
      DamagedFileError: The report is not what was written, or a file is not there as it was.
    """
    path = folder / _name_of(node)
    try:
        with read_regular(path, error=DamagedFileError) as file:
            said = json.loads(file.read(_MOST_BYTES))
        text = said["content"]
        if zlib.crc32(text.encode()) != said["checksum"]:
            raise ValueError("its checksum is another one")
        content = json.loads(text)
        part = NodePart(
            tuple(TablePart(**one) for one in content["tables"]),
            tuple(FileEntry(**one) for one in content["files"]),
            content["error"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from error
    for entry in part.files:
        until = time.monotonic() + _STALE_S
        while (found := _size(folder / entry.name)) != entry.size:
            if time.monotonic() > until:
                raise DamagedFileError(f"{folder / entry.name} has {found} bytes here, and {entry.size} on node {node}")
            time.sleep(0.1)
    path.unlink()
    return part


def _size(path: Path) -> int | None:
    """Bytes; None: it is not there. Of an open file: otherwise a network file system may remember what it was."""
    try:
        with read_regular(path, error=DamagedFileError) as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None


def _name_of(node: int) -> str:
    return f"node-{node:05d}.json"
