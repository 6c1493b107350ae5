"""`Manifest`: what a checkpoint is, and which files it has. Written last; it says of itself whether it is whole.

`manifest.json` is a JSON object of `content` and `checksum`, the CRC-32 of the content's canonical text. A file whose
bytes are not what `encode` makes of its content is damaged.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps.errors import DamagedFileError, UnsupportedError

NAME = "manifest.json"
VARIABLES = "variables.npz"  # of rank 0
CALLBACKS = "callbacks.npz"  # of all ranks
VERSION = 2
_READ = (1, 2)  # versions; 1 has no increments
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint.

    Attributes:
      name: In the checkpoint's folder.
      size: Bytes.
      crc32: Of all of them, 8 hexadecimal digits.
    """

    name: str
    size: int
    crc32: str


@dataclasses.dataclass(frozen=True)
class Link:
    """Another checkpoint of the directory, that one builds on.

    Attributes:
      name: Of its folder.
      id: Its manifest's `id`, which tells it from another one that has got this name.
    """

    name: str
    id: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint is.

    Attributes:
      name: Of its folder.
      step: Updates that the optimizer had made.
      table_step: The committed step of the tables.
      epoch: That training was in, from 0 on.
      batch: Batches of that epoch that had been trained.
      ranks: Of the job.
      nodes: Of the job.
      job: TFSPS_JOB, or None.
      id: Tells this checkpoint from all others.
      run: Tells the process that saved it, or whose checkpoint it was compacted from, from all others.
      chain: What an increment builds on: the base, which has all rows, and the increments to it before this one, all of
        this run. Empty: this one has all rows itself.
      versions: Of the software, by name.
      tables: Of each table, in the model's order: `file`, and what the table was; `id`, which tells it from other
        tables of the run; `content`, "all" rows or the "changes" since the last one in the chain; of changes `erased`,
        the file of the keys that were erased, or None; `rows_checksum`, of the checksums of the file's blocks, by which
        a restore that reads it once sees that it is right, or None.
      variables: Of each dense variable, in order: `name`, `kind`, `dtype`, `shape`.
      files: All files but this one.
    """

    name: str
    step: int
    table_step: int
    epoch: int
    batch: int
    ranks: int
    nodes: int
    job: str | None
    id: str
    run: str
    chain: tuple[Link, ...]
    versions: dict[str, str]
    tables: tuple[dict[str, Any], ...]
    variables: tuple[dict[str, Any], ...]
    files: tuple[FileEntry, ...]

    @property
    def table_bytes(self) -> int:
        """Of the files of tables."""
        names = {str(one["file"]) for one in self.tables}
        return sum(one.size for one in self.files if one.name in names)

    @property
    def stamp(self) -> dict[str, Any]:
        """What each of its NumPy archives says of the step that it is of."""
        return {"step": self.step, "table_step": self.table_step, "id": self.id}

    def encode(self) -> bytes:
        """The file's bytes."""
        return _encode({"version": VERSION, **dataclasses.asdict(self)})

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        """The inverse of `encode`.

        Args:
          data: The file's bytes.
          where: The file, for messages.

        Raises:
          DamagedFileError: These are not what `encode` makes.
          UnsupportedError: They are whole, and of a later version.
        """
        try:
            content = json.loads(data)["content"]
            whole = _encode(content) == data
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DamagedFileError(f"{where} is damaged: it is not a manifest ({error})") from None
        if not whole:
            raise DamagedFileError(f"{where} is damaged: its content does not have its checksum")
        if content.get("version") not in _READ:
            raise UnsupportedError(
                f"{where} is of version {content.get('version')}, and this build of tf_sparse_ps reads {_READ[-1]}"
            )
        try:
            return _from(content)
        except (TypeError, KeyError, ValueError) as error:
            raise DamagedFileError(f"{where} is damaged: {type(error).__name__}: {error}") from None


def _encode(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, indent=1, allow_nan=False)
    return (json.dumps({"checksum": f"{zlib.crc32(text.encode()):08x}"})[:-1] + f', "content": {text}}}\n').encode()


def _from(content: dict[str, Any]) -> Manifest:
    numbers = {name: content[name] for name in ("step", "table_step", "epoch", "batch", "ranks", "nodes")}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} is {value!r}")
    files = tuple(FileEntry(**one) for one in content["files"])
    for one in files:
        if not _FILE_NAME.fullmatch(one.name):
            raise ValueError(f"a file's name is {one.name!r}")
    tables = [{"id": "", "content": "all", "erased": None, "rows_checksum": None, **one} for one in content["tables"]]
    chain = tuple(Link(str(one["name"]), str(one["id"])) for one in content.get("chain", ()))
    names = {one.name for one in files}
    for table in tables:
        if table["content"] not in ("all", "changes") or (table["content"] == "changes" and not chain):
            raise ValueError(f"table {table.get('name')!r} has {table['content']!r}, of {len(chain)} before it")
        for file in (table["file"], *([table["erased"]] if table["erased"] is not None else [])):
            if file not in names:
                raise ValueError(f"a table's file {file!r} is none of the checkpoint's")
    return Manifest(
        name=str(content["name"]),
        job=content["job"],
        id=str(content["id"]),
        run=str(content.get("run", "")),
        chain=chain,
        versions=dict(content["versions"]),
        tables=tuple(tables),
        variables=tuple(dict(one) for one in content["variables"]),
        files=files,
        **numbers,
    )
