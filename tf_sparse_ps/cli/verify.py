"""`tf-sparse-ps verify`: reads all of a group, a table, a file, a checkpoint or a version, and checks all checksums."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from tf_sparse_ps import _table
from tf_sparse_ps.checkpoints import verification
from tf_sparse_ps.checkpoints.stored_checkpoint import file_crc32
from tf_sparse_ps.cli.command import PATH, Command, json_option
from tf_sparse_ps.cli.display import count, print_json, size
from tf_sparse_ps.cli.objects import find
from tf_sparse_ps.errors import AccessError, DamagedFileError, NotFoundError, StateError, UnavailableError
from tf_sparse_ps.monitoring import own_groups
from tf_sparse_ps.serving import ServingTable
from tf_sparse_ps.serving.version import ASSETS, MANIFEST, Version
from tf_sparse_ps.stored import tables
from tf_sparse_ps.stored.contents import FileTable
from tf_sparse_ps.table.groups import open_group
from tf_sparse_ps.table.progress import bar

# These say that what is stored is not what was written. Others, such as a lack of permission, do not.
_DAMAGE = (DamagedFileError, NotFoundError, StateError)


class Verification:
    """The findings so far, and how much was read.

    Attributes:
      findings: For each problem, `where` it is and the `problem`.
      rows, bytes, files: The numbers of rows, bytes and files that were read; 0 where they are not known.
    """

    def __init__(self) -> None:
        self.findings: list[dict[str, str]] = []
        self.rows = self.bytes = self.files = 0

    def add(self, where: str | os.PathLike[str], problem: object) -> None:
        """Adds a problem."""
        self.findings.append({"where": os.fspath(where), "problem": str(problem)})


@click.command(cls=Command)
@click.argument("path", type=PATH)
@json_option
def command(path: Path, as_json: bool) -> int:
    """Reads all of PATH, and checks all checksums that exist.

    PATH is a group, a table, a sparse-parameter file, a checkpoint or a served version; or a directory of checkpoints
    or versions, whose newest is taken. The exit status is 1 if something is damaged. Live tables have no checksums of
    rows: their index, row numbers and keys are checked, and that all values are finite.
    """
    kind, path = find(path)
    result = Verification()
    try:
        _VERIFY[kind](path, result)
    except AccessError:
        raise
    except _DAMAGE as error:
        result.add(path, error)
    facts: dict[str, Any] = {"path": os.fspath(path), "kind": kind, "ok": not result.findings}
    facts |= {"findings": result.findings, "rows": result.rows, "bytes": result.bytes, "files": result.files}
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    return 1 if result.findings else 0


def _print(facts: dict[str, Any]) -> None:
    for finding in facts["findings"]:
        click.echo(finding["problem"])
    if facts["ok"]:
        read = [f"{count(facts['rows'])} rows"] if facts["rows"] else []
        read += [f"{size(facts['bytes'])} in {count(facts['files'])} files"] if facts["files"] else []
        click.echo(f"{facts['path']} is whole" + (f": {', '.join(read)}" if read else ""))
    else:
        click.echo(f"{facts['path']} is DAMAGED")


def _group(path: Path, result: Verification) -> None:
    group = open_group(os.fspath(path))
    names = {table["name"] for _, table, _ in own_groups.rows_of(group)}
    for table in group.tables():
        name = group.table_info(table)["name"]
        rows = result.rows
        _table_of(path / name, result)
        if name not in names:  # counts of keys without a row
            result.rows = rows


def _table_of(path: Path, result: Verification) -> None:
    try:
        problems, rows = tables.live(path).verify()
    except UnavailableError:
        raise
    except DamagedFileError as error:
        result.add(path, error)
        return
    result.rows += rows
    for problem in problems:
        result.add(path, problem if os.fspath(path) in problem else f"{path}: {problem}")


def _file(path: Path, result: Verification) -> None:
    table = FileTable(path)
    with bar(table.at_most, f"check {path.name}") as progress:
        for block in table.blocks(slots=True):
            result.rows += len(block.keys)
            progress.update(len(block.keys))
    result.files, result.bytes = 1, path.stat().st_size


def _checkpoint(path: Path, result: Verification) -> None:
    checkpoint = verification.verify(path)
    for part in checkpoint.parts:
        result.files += len(part.manifest.files)
        result.bytes += sum(entry.size for entry in part.manifest.files)


def _version(path: Path, result: Verification) -> None:
    """Checks each file against the manifest, and then whether the files of each table belong together."""
    version = Version(path)
    content = version.manifest
    with bar(0, f"check {path.name}") as progress:
        for entry in content.table_files:
            file = path / entry.path
            try:
                _table.verify_serving_file(os.fspath(file))
                if int(_table.serving_file_info(os.fspath(file))["crc"]) != entry.crc:
                    raise DamagedFileError(f"{file} is not the file that {MANIFEST} names")
            except _DAMAGE as error:
                result.add(file, error)
            result.files, result.bytes = result.files + 1, result.bytes + entry.bytes
            progress.update(entry.bytes)
        for other in content.others:
            file = path / other.path
            try:
                if (crc32 := file_crc32(file)) != other.crc32:
                    raise DamagedFileError(f"{file} is damaged: its checksum is {crc32}, and was {other.crc32}")
            except FileNotFoundError:
                result.add(file, f"{file} is missing: the version is incomplete")
            except DamagedFileError as error:
                result.add(file, error)
            result.files, result.bytes = result.files + 1, result.bytes + other.bytes
            progress.update(other.bytes)
    if not result.findings:
        for table in content.tables:
            served = ServingTable.open(path / ASSETS / table.asset)
            result.rows += sum(file["n_rows"] for file in served.files())


_VERIFY = {"group": _group, "table": _table_of, "parameter_file": _file, "checkpoint": _checkpoint, "version": _version}
