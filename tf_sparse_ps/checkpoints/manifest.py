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
VERSION = 4
_READ = (1, 2, 3, 4)  # versions; 1 has no increments, 2 one part of each table, 3 no identity of the optimizer
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
class TablePart:
    """Rows of a table in a checkpoint: those that one node has written.

    Attributes:
      file: With the rows, a sparse-parameter file.
      content: "all" rows, or the "changes" since the last checkpoint in the chain.
      erased: Of changes, the file of the keys that were erased, or None.
      rows_checksum: Of the checksums of the file's blocks, by which a restore that reads it once sees that it is right,
        or None.
    """

    file: str
    content: str = "all"
    erased: str | None = None
    rows_checksum: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files."""
        return (self.file,) if self.erased is None else (self.file, self.erased)


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
      tables: Of each table, in the model's order: what the table was; `id`, which tells it from other tables of the
        run; `parts`, each a `TablePart` as a dict: one of all rows, or of each node those of the keys that a hash gives
        it.
      variables: Of each dense variable, in order: `name`, `kind`, `dtype`, `shape`.
      files: All files but this one.
      optimizer: The identity of the optimizer (`OptimizerIdentity`); 0: it is not known.
      node: Whose directory it is in, where each node has its own; None: it has the parts of all nodes.
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
    optimizer: int = 0
    node: int | None = None

    def parts(self, number: int) -> tuple[TablePart, ...]:
        """Of a table, by its place in `tables`."""
        return tuple(TablePart(**one) for one in self.tables[number]["parts"])

    @property
    def all_parts(self) -> tuple[TablePart, ...]:
        """Of all tables."""
        return tuple(part for number in range(len(self.tables)) for part in self.parts(number))

    @property
    def row_files(self) -> set[str]:
        """The names of the files with rows of tables."""
        return {part.file for part in self.all_parts}

    @property
    def table_bytes(self) -> int:
        """Of the files with rows."""
        names = self.row_files
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
                f"{where} has version {content.get('version')}. This version of tf_sparse_ps reads versions {_READ[0]} "
                f"to {_READ[-1]}. Restore the checkpoint with the version that wrote it, or with a later one"
            )
        try:
            return _from(content)
        except (TypeError, KeyError, ValueError) as error:
            raise DamagedFileError(f"{where} is damaged: {type(error).__name__}: {error}") from None


def name_of_file(number: int, table: str, node: int | None = None) -> str:
    """Of the file with a table's rows.

    Args:
      number: Of the table.
      table: Its name.
      node: Whose part it is; None: all rows.
    """
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", table)[:100]
    return f"t{number:04d}-{shown}{'' if node is None else f'.node-{node:05d}'}.tfsps"


def _encode(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, indent=1, allow_nan=False)
    return (json.dumps({"checksum": f"{zlib.crc32(text.encode()):08x}"})[:-1] + f', "content": {text}}}\n').encode()


def _in_one_part(table: Mapping[str, Any]) -> dict[str, Any]:
    """What versions 1 and 2 say of a table, as it is said now."""
    names = [field.name for field in dataclasses.fields(TablePart)]
    part = TablePart(**{name: table[name] for name in names if name in table})
    rest = {name: value for name, value in table.items() if name not in names}
    return {**rest, "parts": [dataclasses.asdict(part)]}


def _from(content: dict[str, Any]) -> Manifest:
    numbers = {name: content[name] for name in ("step", "table_step", "epoch", "batch", "ranks", "nodes")}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} is {value!r}")
    files = tuple(FileEntry(**one) for one in content["files"])
    for one in files:
        if not _FILE_NAME.fullmatch(one.name):
            raise ValueError(f"a file's name is {one.name!r}")
    tables = [{"id": "", **(one if "parts" in one else _in_one_part(one))} for one in content["tables"]]
    chain = tuple(Link(str(one["name"]), str(one["id"])) for one in content.get("chain", ()))
    names = {one.name for one in files}
    for table in tables:
        if not table["parts"]:
            raise ValueError(f"table {table.get('name')!r} has no rows")
        for part in (TablePart(**one) for one in table["parts"]):
            if part.content not in ("all", "changes") or (part.content == "changes" and not chain):
                raise ValueError(f"table {table.get('name')!r} has {part.content!r}, of {len(chain)} before it")
            for file in part.files:
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
        optimizer=int(content.get("optimizer", 0)),
        node=content.get("node"),
        **numbers,
    )
