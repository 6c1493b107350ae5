"""`tf-sparse-ps checkpoint list | verify | diff | compact | erase | export`. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tf_sparse_ps.checkpoints import array_file, compaction, comparison, erasing, exports, stored_checkpoint
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.checkpoints.manifest import Manifest
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.config.plain_numbers import positive_integer
from tf_sparse_ps.errors import NotFoundError, StateError, TableError
from tf_sparse_ps.table.progress import bar

_CHECKPOINTS = "where the checkpoints are, or one of them"
_DIRECTORY = "where the checkpoints are"
_ONE = "a checkpoint, or a directory of them, whose newest whole one is taken"


def main(arguments: Sequence[str]) -> int:
    """Runs a command.

    Args:
      arguments: The arguments after `tf-sparse-ps checkpoint`.

    Returns:
      The exit status. `list` and `verify` return 1 if there is no checkpoint, or one is incomplete or damaged; `diff`
      returns 1 if the checkpoints differ. All return 2 if the command could not be done, else 0.

    Raises:
      SystemExit: The arguments have a mistake, with status 2; or help was asked for.
    """
    parser = argparse.ArgumentParser("tf-sparse-ps checkpoint", description="Checkpoints of training jobs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int], directory: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("directory", type=Path, metavar="DIR", help=directory)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
        return command

    add(
        "list",
        "name the checkpoints, the newest first, with what their manifests say; read no other file",
        _list,
        _CHECKPOINTS,
    )
    add(
        "verify",
        "read all files, compare checksums, and the steps of tables with that of the dense weights",
        _list,
        _CHECKPOINTS,
    )
    diff = add("diff", "count rows, and name dense variables, that differ between two checkpoints", _diff, _ONE)
    diff.add_argument(
        "other", type=Path, nargs="?", metavar="OTHER", help=f"{_ONE}; left out: the two newest of DIR are compared"
    )
    compact = add(
        "compact",
        "write the newest checkpoint again, so that it builds on no other one, and remove the increment",
        _compact,
        _DIRECTORY,
    )
    compact.add_argument(
        "--keep", type=positive_integer, metavar="N", help="remove all checkpoints but N, and what they build on"
    )
    erase = add(
        "erase",
        "write the newest checkpoint again without the rows of some ids, and remove all other checkpoints, so that no "
        "file has these rows",
        _erase,
        _DIRECTORY,
    )
    erase.add_argument(
        "--keys", type=Path, required=True, metavar="FILE", help="ids, one per line, or a NumPy array in a .npy file"
    )
    erase.add_argument("--strings", action="store_true", help="the ids are strings, not integers")
    erase.add_argument("--table", metavar="NAME", help="the table's name or place, from 0 on; left out: the only one")
    export = add(
        "export",
        "write all rows of each table to a sparse-parameter file, and dense variables to a NumPy archive",
        _export,
        _ONE,
    )
    export.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="made if it is not there, else empty")
    options = parser.parse_args(list(arguments))
    if not options.directory.is_dir():
        parser.error(f"{options.directory} is no directory")
    if options.command in ("compact", "erase") and CheckpointDirectory.names(options.directory):
        parser.error(f"{options.directory} is a checkpoint. {options.command} takes the directory that it is in")
    if options.command == "export" and options.to.exists() and not options.to.is_dir():
        parser.error(f"--to {options.to} is there, and no folder")
    try:
        status: int = options.run(options)
    except (TableError, OSError) as error:
        print(f"tf-sparse-ps checkpoint {options.command}: {error}", file=sys.stderr)
        return 2
    return status


# --- list, verify ---


def _list(options: argparse.Namespace) -> int:
    read = _verify if options.command == "verify" else stored_checkpoint.look
    paths = [folder.path for folder in CheckpointDirectory(options.directory).find()]
    if not paths and CheckpointDirectory.names(options.directory):
        paths = [options.directory.resolve()]
    checkpoints = [_facts(path, read) for path in paths]
    if options.json:
        print(json.dumps(checkpoints, indent=1))
    else:
        for facts in checkpoints:
            print(_line(facts))
    if not checkpoints:
        print(f"{options.directory} has no checkpoints", file=sys.stderr)
    return 0 if checkpoints and all(facts["problem"] is None for facts in checkpoints) else 1


def _verify(path: Path) -> StoredCheckpoint:
    with bar(0, f"check {path.name}") as progress:
        checkpoint = stored_checkpoint.check(path, lambda _, n: progress.update(n))
    content = checkpoint.manifest
    for number in range(len(content.tables)):
        StoredRows(checkpoint, number)  # or it raises
    for entry in content.files:
        if entry.name.endswith(".npz"):
            facts, _ = array_file.read(path / entry.name)
            if (stamp := {name: facts.get(name) for name in content.stamp}) != content.stamp:
                raise StateError(f"{path / entry.name} is of {stamp}, and the other parts of {content.stamp}")
    return checkpoint


def _facts(path: Path, read: Callable[[Path], StoredCheckpoint]) -> dict[str, Any]:
    try:
        content: Manifest = read(path).manifest
    except (TableError, OSError) as error:
        return {"name": path.name, "problem": str(error)}
    return {
        "name": path.name,
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


def _diff(options: argparse.Namespace) -> int:
    if options.other is not None:
        old, new = CheckpointDirectory.read(options.directory), CheckpointDirectory.read(options.other)
    else:
        whole = CheckpointDirectory(options.directory).whole(2)
        if len(whole) < 2:
            raise NotFoundError(f"{options.directory} has no two checkpoints that are whole")
        new, old = whole
    difference = comparison.compare(old, new)
    status = 0 if difference["equal"] else 1
    if options.json:
        print(json.dumps(difference, indent=1))
        return status
    sides = difference["old"], difference["new"]
    print(", ".join(f"{side['name']} (step {side['step']})" for side in sides))
    for name, rows in difference["tables"].items():
        counts = ", ".join(f"{n} {kind}" for kind, n in rows.items() if kind != "only_in")
        print(f"table {name}: " + (counts or f"only in {difference[rows['only_in']]['name']}"))
    for kind, names in difference["variables"].items():
        for name in names:
            print(f"variable {name}: {kind.replace('_', ' ')}")
    return status


def _compact(options: argparse.Namespace) -> int:
    result = compaction.compact(options.directory, options.keep)
    if options.json:
        facts = {
            "checkpoint": result.checkpoint.name,
            "merged": result.merged,
            "removed": result.removed,
            "bytes": result.bytes,
        }
        print(json.dumps(facts, indent=1))
        return 0
    origin = f"merged from {len(result.merged)}" if result.merged else "builds on no other one"
    print(f"{result.checkpoint.name}  {result.bytes / 1e6:.1f} MB, {origin}")
    for name in result.removed:
        print(f"{name}  removed")
    return 0


def _erase(options: argparse.Namespace) -> int:
    keys = erasing.read_keys(options.keys, strings=options.strings)
    result = erasing.erase(options.directory, keys, options.table)
    if options.json:
        facts = {"checkpoint": result.checkpoint.name, "rows": result.rows, "removed": result.removed}
        print(json.dumps(facts, indent=1))
        return 0
    print(f"{result.checkpoint.name}  without {_count(result.rows, 'row')} of {_count(len(keys), 'id')}")
    for name in result.removed:
        print(f"{name}  removed")
    return 0


def _export(options: argparse.Namespace) -> int:
    checkpoint = CheckpointDirectory.read(options.directory)
    files = exports.export(checkpoint, options.to)
    if options.json:
        print(json.dumps({"checkpoint": checkpoint.path.name, "folder": str(options.to), "files": files}, indent=1))
        return 0
    for name in files:
        print(options.to / name)
    return 0
