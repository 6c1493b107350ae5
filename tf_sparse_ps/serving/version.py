"""The folder of a served version, and the manifest of its tables.

A version is a SavedModel with two more entries:

    serve/42/
        saved_model.pb, variables/      the graph and the dense weights of one step
        assets/t0000-words              names the files of a table, for the op library
        tables/t0000-words/*.serving    the files of a table, which later versions link to
        version.json                    `VersionManifest`, written last

The folder appears by one rename, and never changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tf_sparse_ps import checked_json
from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, NotFoundError, UnsupportedError

ASSETS, TABLES, MANIFEST = "assets", "tables", "version.json"
FORMAT = 1
_NUMBER = re.compile(r"[0-9]{1,18}")
_TRIES = 3

Used = TypeVar("Used")


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """A file of a table.

    Attributes:
      path: Its path in the version's folder.
      bytes: Its size.
      crc: The checksum of its header, which has those of all blocks.
    """

    path: str
    bytes: int
    crc: int

    @property
    def identity(self) -> tuple[str, int, int]:
        """The name, the size and the checksum, which are equal if several versions share a file."""
        return self.path.rpartition("/")[2], self.bytes, self.crc


@dataclasses.dataclass(frozen=True)
class OtherFile:
    """A file of the SavedModel.

    Attributes:
      path: Its path in the version's folder.
      bytes: Its size.
      crc32: The CRC-32 of its bytes, 8 hexadecimal digits.
    """

    path: str
    bytes: int
    crc32: str


@dataclasses.dataclass(frozen=True)
class TableEntry:
    """A table of a version.

    Attributes:
      name: The name of the table, which is that of its layer.
      asset: The name of the file in `assets` that names its files.
      uuid: The identity of the table in its job.
      marks: For each node that has a part of the table, the mark (`Table.mark_changes`) of the state that the version
        has. The next version has what was written since.
      sequence: The number of the last export that has changed the files.
      rows: How rows are stored.
      absent: What keys without a row read.
      hash_seed: The seed of the hashes of the files.
      files: The files, newest first.
    """

    name: str
    asset: str
    uuid: str
    marks: tuple[str, ...]
    sequence: int
    rows: str
    absent: str
    hash_seed: int
    files: tuple[FileEntry, ...]


@dataclasses.dataclass(frozen=True)
class VersionManifest:
    """The description of a version.

    Attributes:
      id: The identity of the version. Another version of the same name has another one.
      step: The step of dense weights and tables.
      tables: The tables, in the order of the model's layers.
      variables: For each dense variable, its key in `variables/` and the name in the model.
      versions: The versions of the software, by name.
      others: All files but those of tables and the manifest. `VersionBuilder.finish` lists them.
    """

    id: str
    step: int
    tables: tuple[TableEntry, ...]
    variables: tuple[tuple[str, str], ...]
    versions: dict[str, str]
    others: tuple[OtherFile, ...] = ()

    @property
    def table_files(self) -> tuple[FileEntry, ...]:
        """The files of all tables."""
        return tuple(entry for table in self.tables for entry in table.files)

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        return checked_json.encode({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def decode(cls, data: bytes, where: str) -> VersionManifest:
        """Returns the manifest of a file's bytes.

        Raises:
          DamagedFileError: The bytes are not what `encode` makes.
          UnsupportedError: They have a later format.
        """
        content = checked_json.decode(data, where)
        if content.get("format") != FORMAT:
            raise UnsupportedError(
                f"{where} has format {content.get('format')}, and this version of tf_sparse_ps reads format {FORMAT}. "
                "Open it with the version that wrote it, or with a later one"
            )
        try:
            tables = tuple(_table_of(entry) for entry in content["tables"])
            return cls(
                id=str(content["id"]),
                step=int(content["step"]),
                tables=tables,
                variables=tuple((str(key), str(name)) for key, name in content["variables"]),
                versions=dict(content["versions"]),
                others=tuple(_other_of(entry) for entry in content["others"]),
            )
        except (TypeError, KeyError, ValueError) as error:
            raise DamagedFileError(f"{where} is damaged: {type(error).__name__}: {error}") from None


def other_file(path: str, data: bytes) -> OtherFile:
    """Returns the entry of a file with these bytes."""
    return OtherFile(path, len(data), f"{zlib.crc32(data):08x}")


def _other_of(entry: dict[str, Any]) -> OtherFile:
    _check_names(entry["path"].split("/"))
    return OtherFile(str(entry["path"]), int(entry["bytes"]), str(entry["crc32"]))


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        checked_json.check_file_name(name)


def _table_of(entry: dict[str, Any]) -> TableEntry:
    files = tuple(FileEntry(str(file["path"]), int(file["bytes"]), int(file["crc"])) for file in entry["files"])
    _check_names([part for file in files for part in file.path.split("/")] + [entry["asset"]])
    return TableEntry(**{**entry, "files": files, "marks": tuple(entry["marks"])})


class Version:
    """A version in its folder.

    Attributes:
      path: The folder.
      manifest: Its manifest.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads the manifest.

        Raises:
          NotFoundError: The folder is not there, or is not a complete version.
          DamagedFileError, UnsupportedError: As `VersionManifest.decode`.
        """
        self.path = Path(path)
        try:
            data = (self.path / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(
                f"{path} is not a served version: it has no {MANIFEST}. Name a folder that tsps.export has written"
            ) from None
        self.manifest = VersionManifest.decode(data, os.fspath(self.path / MANIFEST))

    @property
    def tables(self) -> tuple[TableEntry, ...]:
        """The tables."""
        return self.manifest.tables


def number_of(name: str) -> int | None:
    """Returns the number that the name of a version is, or None."""
    return int(name) if _NUMBER.fullmatch(name) else None


def numbered(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yields the number and the folder of each entry of a directory that has a number as its name, newest first."""
    try:
        names = [entry.name for entry in os.scandir(directory) if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        names = []
    numbers = ((number, directory / name) for name in names if (number := number_of(name)) is not None)
    yield from sorted(numbers, reverse=True)


def is_complete(folder: Path) -> bool:
    """Whether a folder is a version that has all of its files."""
    return (folder / MANIFEST).exists()


def complete(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yields the number and the folder of each complete version of a directory, newest first."""
    return ((number, folder) for number, folder in numbered(directory) if is_complete(folder))


def newest(path: str | os.PathLike[str]) -> Version:
    """Returns the version in a folder, or the newest version in a directory of versions.

    Raises:
      NotFoundError: There is none.
      DamagedFileError, UnsupportedError: As `Version`.
    """
    folder = Path(path)
    if is_complete(folder):
        return Version(folder)
    for _, candidate in complete(folder):
        return Version(candidate)
    raise NotFoundError(
        f"{path} is not a served version, and has none with a number as its name. Name a folder that tsps.export has "
        "written, or the directory of such folders"
    )


def with_newest(
    path: str | os.PathLike[str],
    use: Callable[[Version], Used],
    gone: tuple[type[Exception], ...] = (NotFoundError, OSError),
) -> Used:
    """Calls a function with the version that `newest` finds, and with a newer one if that is removed meanwhile.

    Args:
      path: As for `newest`.
      use: The function.
      gone: The errors of the function by which a version may be gone.

    Returns:
      What the function returns.

    Raises:
      NotFoundError, DamagedFileError, UnsupportedError: As `newest`, and as the function.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(*gone):
            return use(newest(path))
    return use(newest(path))


def check_new(path: Path) -> None:
    """Raises InvalidArgumentError if a version cannot be written to `path`."""
    if os.path.lexists(path):
        raise InvalidArgumentError(
            f"{path} exists, and a version never changes. Export to a folder that is not there, such as the next number"
        )
