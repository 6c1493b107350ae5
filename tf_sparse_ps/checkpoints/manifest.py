"""`Manifest`: what a checkpoint is, and which files it has. It is written last, and has a checksum of itself.

`manifest.json` is a JSON object of `content` and `checksum`, the CRC-32 of the content's canonical text. A file whose
bytes are not what `encode` makes of its content is damaged.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps import checked_json
from tf_sparse_ps.errors import DamagedFileError, UnsupportedError

NAME = "manifest.json"
VARIABLES = "variables.npz"  # rank 0's
CALLBACKS = "callbacks.npz"  # those of all ranks
VERSION = 4
_READ = (1, 2, 3, 4)  # versions; 1 has no increments, 2 one part of each table, 3 no identity of the optimizer


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint.

    Attributes:
      name: Its name in the checkpoint's folder.
      size: Its bytes.
      crc32: The CRC-32 of all bytes, 8 hexadecimal digits.
    """

    name: str
    size: int
    crc32: str


@dataclasses.dataclass(frozen=True)
class TablePart:
    """The rows of a table that one node has written to a checkpoint.

    Attributes:
      file: The sparse-parameter file with the rows.
      content: "all" rows, or the "changes" since the last checkpoint in the chain.
      erased: The file of the keys that were erased, of "changes"; or None.
      rows_checksum: A checksum of the checksums of the file's blocks, or None. By it, a restore that reads the file
        once detects damage.
    """

    file: str
    content: str = "all"
    erased: str | None = None
    rows_checksum: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the part's files."""
        return (self.file,) if self.erased is None else (self.file, self.erased)


@dataclasses.dataclass(frozen=True)
class Link:
    """Another checkpoint of the directory, on which one builds.

    Attributes:
      name: The name of its folder.
      id: The `id` in its manifest. Another checkpoint of the same name has another `id`.
    """

    name: str
    id: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint.

    Attributes:
      name: The name of the checkpoint's folder.
      step: The number of updates that the optimizer had made.
      table_step: The committed step of the tables.
      epoch: The epoch that training was in, from 0 on.
      batch: The number of batches of that epoch that had been trained.
      ranks: The number of ranks of the job.
      nodes: The number of its nodes.
      job: TFSPS_JOB, or None.
      id: The identity of this checkpoint.
      run: The identity of the run that saved it, or whose checkpoint it was compacted from.
      chain: What an increment builds on: the base, which holds all rows, and the increments to it before this one, all
        of this run. Empty: this checkpoint holds all rows itself.
      versions: The versions of the software, by name.
      tables: For each table, in the model's order: what the table was; `id`, its identity among the tables of the run;
        `parts`, each a `TablePart` as a dict. There is one part with all rows, or one of each node with those of the
        keys that a hash assigns to it. After the tables come the counts of their keys without a row, which have
        `sketch_of`, the place of the table.
      variables: For each dense variable, in order: `name`, `kind`, `dtype`, `shape`.
      files: All files except this one.
      optimizer: The identity of the optimizer (`OptimizerIdentity`); 0: it is not known.
      node: The node in whose directory the checkpoint is, if each has its own. None: it holds the parts of all nodes.
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
        """Returns the parts of a table, by its place in `tables`."""
        return tuple(TablePart(**part) for part in self.tables[number]["parts"])

    @property
    def row_tables(self) -> tuple[dict[str, Any], ...]:
        """Those of `tables` that are tables of the model. Their places are the same."""
        return tuple(table for table in self.tables if "sketch_of" not in table)

    @property
    def all_parts(self) -> tuple[TablePart, ...]:
        """The parts of all tables."""
        return tuple(part for number in range(len(self.tables)) for part in self.parts(number))

    @property
    def file_names(self) -> set[str]:
        """The names of all files except this one."""
        return {entry.name for entry in self.files}

    @property
    def row_files(self) -> set[str]:
        """The names of the files with rows of tables."""
        return {part.file for part in self.all_parts}

    @property
    def table_bytes(self) -> int:
        """The bytes of the files with rows."""
        names = self.row_files
        return sum(entry.size for entry in self.files if entry.name in names)

    @property
    def stamp(self) -> dict[str, Any]:
        """The facts by which each of its NumPy archives says which step it is of."""
        return {"step": self.step, "table_step": self.table_step, "id": self.id}

    def encode(self) -> bytes:
        """Returns the file's bytes."""
        return checked_json.encode({"version": VERSION, **dataclasses.asdict(self)})

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        """Returns the manifest of a file's bytes: the inverse of `encode`.

        Args:
          data: The file's bytes.
          where: The file, for messages.

        Raises:
          DamagedFileError: The bytes are not what `encode` makes.
          UnsupportedError: The bytes are whole, and of a later version.
        """
        content = checked_json.decode(data, where)
        if content.get("version") not in _READ:
            raise UnsupportedError(
                f"{where} has version {content.get('version')}. This version of tf_sparse_ps reads versions {_READ[0]} "
                f"to {_READ[-1]}. Restore the checkpoint with the version that wrote it, or with a later one"
            )
        try:
            return _from(content)
        except (TypeError, KeyError, ValueError) as error:
            raise DamagedFileError(f"{where} is damaged: {type(error).__name__}: {error}") from None


def table_file_name(number: int, table: str, node: int | None = None) -> str:
    """Returns the name of the file with a table's rows.

    Args:
      number: The table's place in the model.
      table: The table's name.
      node: The node whose part the file holds; None: all rows.
    """
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", table)[:100]
    return f"t{number:04d}-{shown}{'' if node is None else f'.node-{node:05d}'}.tfsps"


def _in_one_part(table: Mapping[str, Any]) -> dict[str, Any]:
    """Converts what versions 1 and 2 say of a table to the form of later versions."""
    names = [field.name for field in dataclasses.fields(TablePart)]
    part = TablePart(**{name: table[name] for name in names if name in table})
    rest = {name: value for name, value in table.items() if name not in names}
    return {**rest, "parts": [dataclasses.asdict(part)]}


def _from(content: dict[str, Any]) -> Manifest:
    numbers = {name: content[name] for name in ("step", "table_step", "epoch", "batch", "ranks", "nodes")}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} is {value!r}")
    files = tuple(FileEntry(**entry) for entry in content["files"])
    names = {entry.name for entry in files}
    for name in names:
        checked_json.check_file_name(name)
    tables = [{"id": "", **(table if "parts" in table else _in_one_part(table))} for table in content["tables"]]
    chain = tuple(Link(str(link["name"]), str(link["id"])) for link in content.get("chain", ()))
    for table in tables:
        if not table["parts"]:
            raise ValueError(f"table {table.get('name')!r} has no rows")
        for part in (TablePart(**fields) for fields in table["parts"]):
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
        variables=tuple(dict(facts) for facts in content["variables"]),
        files=files,
        optimizer=int(content.get("optimizer", 0)),
        node=content.get("node"),
        **numbers,
    )
