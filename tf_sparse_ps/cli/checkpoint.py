"""`tf-sparse-ps checkpoint list | verify | diff | compact | erase | export`. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tf_sparse_ps.checkpoints import compaction, comparison, erasing, exports, verification
from tf_sparse_ps.checkpoints.directories import opened, opened_with, reading
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.cli.command import PATH, PATH_OR_URL, Command, json_option, mistake, positive_integer
from tf_sparse_ps.cli.display import print_json
from tf_sparse_ps.errors import NotFoundError, TableError


@click.group()
def command() -> None:
    """Checkpoints of training jobs.

    DIR is the directory of checkpoints, or for list, verify, diff and export a single one: a path, or a URL such as
    s3://bucket/run1. What is read of a URL is copied to a temporary folder (TMPDIR) meanwhile.
    """


_directory = click.argument("directory", type=PATH_OR_URL, metavar="DIR")


def _check(directory: Path | str, *, single: bool = True) -> None:
    """Ends the command if `directory` is no directory; or, unless `single`, if it is a checkpoint."""
    if isinstance(directory, Path) and not directory.is_dir():
        mistake(f"{directory} is no directory")
    if not single and CheckpointDirectory.names(Path(directory)):
        name = click.get_current_context().info_name
        mistake(f"{directory} is a checkpoint. {name} takes the directory that it is in")


# --- list, verify ---


@command.command("list", cls=Command, short_help="Names the checkpoints, the newest first.")
@_directory
@json_option
def list_(directory: Path | str, as_json: bool) -> int:
    """Names the checkpoints, the newest first, with what their manifests say. Reads no other file."""
    return _list(directory, lambda place, name: place.look(name), as_json=as_json)


@command.command(cls=Command, short_help="Reads all files and compares checksums.")
@_directory
@json_option
def verify(directory: Path | str, as_json: bool) -> int:
    """Reads all files, compares checksums, and the steps of tables with that of the dense weights."""
    return _list(directory, _verify, as_json=as_json)


_Read = Callable[[CheckpointDirectory, str], StoredCheckpoint]


def _verify(place: CheckpointDirectory, name: str) -> StoredCheckpoint:
    if place.is_remote:
        place.checked(name)  # copies it
    return verification.verify(place.path / name)


def _list(directory: Path | str, read: _Read, *, as_json: bool) -> int:
    _check(directory)
    with opened_with(directory) as (place, name):
        names = [name] if name is not None else [folder.path.name for folder in place.find()]
        checkpoints = [_facts(place, each, read) for each in names]
    if as_json:
        print_json(checkpoints)
    else:
        for facts in checkpoints:
            click.echo(_line(facts))
    if not checkpoints:
        click.echo(f"{directory} has no checkpoints", err=True)
    return 0 if checkpoints and all(facts["problem"] is None for facts in checkpoints) else 1


def _facts(place: CheckpointDirectory, name: str, read: _Read) -> dict[str, Any]:
    try:
        content = read(place, name).manifest
    except (TableError, OSError) as error:
        return {"name": name, "problem": str(error)}
    return {
        "name": name,
        "problem": None,
        "step": content.step,
        "epoch": content.epoch,
        "batch": content.batch,
        "ranks": content.ranks,
        "nodes": content.nodes,
        "node": content.node,
        "job": content.job,
        "tables": [table["name"] for table in content.row_tables],
        "builds_on": [link.name for link in content.chain],
        "bytes": sum(entry.size for entry in content.files),
        "versions": content.versions,
    }


def _line(facts: dict[str, Any]) -> str:
    if facts["problem"] is not None:
        return f"{facts['name']}  NOT WHOLE: {facts['problem']}"
    position = f"epoch {facts['epoch']}, batch {facts['batch']}"
    chain = facts["builds_on"]
    alone = "" if facts["node"] is None else f", what machine {facts['node']} has"
    added = f", increment {len(chain)} of {chain[0]}" if chain else ""
    return (
        f"{facts['name']}  {position}, {_count(len(facts['tables']), 'table')}, {facts['bytes'] / 1e6:.1f} MB, "
        f"of {_count(facts['ranks'], 'rank')} on {_count(facts['nodes'], 'machine')}{alone}{added}"
    )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


# --- diff, compact, erase, export ---


@command.command(cls=Command, short_help="Counts rows and variables that differ.")
@_directory
@click.argument("other", type=PATH_OR_URL, required=False)
@json_option
def diff(directory: Path | str, other: Path | str | None, as_json: bool) -> int:
    """Counts rows, and names dense variables, that differ between two checkpoints.

    If OTHER is left out, the two newest of DIR are compared. For a directory, its newest whole one is taken.
    """
    _check(directory)
    if other is not None:
        with reading(directory) as old, reading(other) as new:
            difference = comparison.compare(old, new)
    else:
        with opened(directory) as place:
            whole = place.whole(2)
            if len(whole) < 2:
                raise NotFoundError(f"{directory} has no two checkpoints that are whole")
            difference = comparison.compare(whole[1], whole[0])
    status = 0 if difference["equal"] else 1
    if as_json:
        print_json(difference)
        return status
    sides = difference["old"], difference["new"]
    click.echo(", ".join(f"{side['name']} (step {side['step']})" for side in sides))
    for name, rows in difference["tables"].items():
        counts = ", ".join(f"{n} {kind}" for kind, n in rows.items() if kind != "only_in")
        click.echo(f"table {name}: " + (counts or f"only in {difference[rows['only_in']]['name']}"))
    for kind, names in difference["variables"].items():
        for name in names:
            click.echo(f"variable {name}: {kind.replace('_', ' ')}")
    return status


@command.command(cls=Command, short_help="Makes the newest independent of others.")
@_directory
@click.option(
    "--keep", type=positive_integer, metavar="N", help="Remove all checkpoints but N, and what they build on."
)
@json_option
def compact(directory: Path | str, keep: int | None, as_json: bool) -> int:
    """Writes the newest checkpoint again, so that it builds on no other one, and removes the increment."""
    _check(directory, single=False)
    result = compaction.compact(directory, keep)
    if as_json:
        facts = {
            "checkpoint": result.checkpoint.name,
            "merged": list(result.merged),
            "removed": list(result.removed),
            "bytes": result.bytes,
        }
        print_json(facts)
        return 0
    origin = f"merged from {len(result.merged)}" if result.merged else "builds on no other one"
    click.echo(f"{result.checkpoint.name}  {result.bytes / 1e6:.1f} MB, {origin}")
    for name in result.removed:
        click.echo(f"{name}  removed")
    return 0


@command.command(cls=Command, short_help="Removes the rows of some ids.")
@_directory
@click.option(
    "--keys",
    "keys_file",
    type=PATH,
    required=True,
    metavar="FILE",
    help="Ids, one per line, or a NumPy array in a .npy file.",
)
@click.option("--strings", is_flag=True, help="The ids are strings, not integers.")
@click.option("--table", metavar="NAME", help="The table's name or place, from 0 on. If left out: the only one.")
@json_option
def erase(directory: Path | str, keys_file: Path, strings: bool, table: str | None, as_json: bool) -> int:
    """Writes the newest checkpoint again without the rows of some ids.

    All other checkpoints are removed, so that no file has these rows.
    """
    _check(directory, single=False)
    keys = erasing.read_keys(keys_file, strings=strings)
    result = erasing.erase(directory, keys, table)
    if as_json:
        print_json({"checkpoint": result.checkpoint.name, "rows": result.rows, "removed": list(result.removed)})
        return 0
    click.echo(f"{result.checkpoint.name}  without {_count(result.rows, 'row')} of {_count(len(keys), 'id')}")
    for name in result.removed:
        click.echo(f"{name}  removed")
    return 0


@command.command(cls=Command, short_help="Writes tables and variables as plain files.")
@_directory
@click.option(
    "--to",
    "folder",
    type=PATH,
    required=True,
    metavar="FOLDER",
    help="Made if it is not there, else empty.",
)
@json_option
def export(directory: Path | str, folder: Path, as_json: bool) -> int:
    """Writes all rows of each table to a sparse-parameter file, and dense variables to a NumPy archive."""
    _check(directory)
    if folder.exists() and not folder.is_dir():
        mistake(f"--to {folder} is there, and no folder")
    with reading(directory) as checkpoint:
        files = exports.export(checkpoint, folder)
    if as_json:
        print_json({"checkpoint": checkpoint.path.name, "folder": str(folder), "files": files})
        return 0
    for name in files:
        click.echo(folder / name)
    return 0
