"""`NodePart`: what the leader of another node has written of a checkpoint, reported to rank 0 in a file.

The leader writes the report last. Rank 0 waits for it, removes it, and names the files in the manifest. No collective
is involved: those belong to the training that continues meanwhile.
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
_STALE_S = 5.0  # for so long a network file system may show another machine's files as they were


@dataclasses.dataclass(frozen=True)
class NodePart:
    """The part of a checkpoint that one node has written.

    Attributes:
      tables: This node's part of each table, in the model's order.
      files: The files that the node has written.
      error: Why the part could not be written, or None if it is complete.
    """

    tables: tuple[TablePart, ...]
    files: tuple[FileEntry, ...]
    error: str | None = None

    def report(self, folder: Path, node: int) -> None:
        """Writes the report for rank 0. The node's files must be on the disk.

        Args:
          folder: The folder of the save.
          node: The number of this node.
        """
        path = folder / report_name(node)
        aside = path.with_suffix(".writing")
        aside.write_bytes(self.encode())
        os.rename(aside, path)
        fault_points.reach(fault_points.PART_REPORTED)

    def encode(self) -> bytes:
        """Returns the bytes of a report."""
        text = json.dumps(dataclasses.asdict(self))
        return json.dumps({"checksum": zlib.crc32(text.encode()), "content": text}).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> NodePart:
        """Returns the part of a report's bytes: the inverse of `encode`.

        Args:
          data: The bytes.
          where: The report, for messages.

        Raises:
          DamagedFileError: The bytes are not what was written.
        """
        try:
            report = json.loads(data)
            text = report["content"]
            if zlib.crc32(text.encode()) != report["checksum"]:
                raise ValueError("its checksum is another one")
            content = json.loads(text)
            return cls(
                tuple(TablePart(**table) for table in content["tables"]),
                tuple(FileEntry(**entry) for entry in content["files"]),
                content["error"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(f"{where} is damaged: {error}") from error


def is_there(folder: Path, node: int) -> bool:
    """Whether a node has reported."""
    # A list of names is read again each time; whether one name is there, a network file system may cache.
    return report_name(node) in os.listdir(folder)


def take(folder: Path, node: int) -> NodePart:
    """Reads what a node has reported, and removes the report.

    Raises:
      DamagedFileError: The report is not what was written, or a file is not there as it was.
    """
    path = folder / report_name(node)
    with read_regular(path, error=DamagedFileError) as file:
        part = NodePart.decode(file.read(_MOST_BYTES), str(path))
    for entry in part.files:
        until = time.monotonic() + _STALE_S
        while (size := _size(folder / entry.name)) != entry.size:
            if time.monotonic() > until:
                raise DamagedFileError(f"{folder / entry.name} has {size} bytes here, and {entry.size} on node {node}")
            time.sleep(0.1)
    path.unlink()
    return part


def _size(path: Path) -> int | None:
    """Returns the bytes of a file, or None if it is not there. Opens it, as a network file system may cache sizes."""
    try:
        with read_regular(path, error=DamagedFileError) as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None


def report_name(node: int) -> str:
    """Returns the name of a node's report."""
    return f"node-{node:05d}.json"
