"""`tf-sparse-ps checkpoint list | verify | diff | compact | export`: needs no TensorFlow."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tf_sparse_ps.checkpoints import array_file, compaction, comparison, directory, exports
from tf_sparse_ps.checkpoints.directory import Checked, CheckpointDirectory
from tf_sparse_ps.checkpoints.manifest import Manifest
from tf_sparse_ps.checkpoints.stored_rows import StoredRows
from tf_sparse_ps.errors import NotFoundError, StateError, TableError
from tf_sparse_ps.table.progress import bar

_CHECKPOINTS = "where the checkpoints are, or one of them"
_DIRECTORY = "where the checkpoints are"
_ONE = "a checkpoint, or a directory of them, whose newest whole one is taken"


def main(arguments: Sequence[str]) -> int:
    """Runs a command.

    Args:
      arguments: Behind `tf-sparse-ps checkpoint`.

    Returns:
      The exit status. `list`, `verify`: 1 if there is no checkpoint, or one is incomplete or damaged; `diff`: 1 if they
      differ; all: 2 if it could not be done, else 0.

    Raises:
      SystemExit: A mistake in the arguments, with status 2; or help was asked for.
    """
    parser = argparse.ArgumentParser("tf-sparse-ps checkpoint", description="Checkpoints of training jobs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int], what: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("directory", type=Path, metavar="DIR", help=what)
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
        "write the newest checkpoint anew, so that it builds on no other one, and remove the increment",
        _compact,
        _DIRECTORY,
    )
    compact.add_argument(
        "--keep", type=_positive, metavar="N", help="remove all checkpoints but N, and what they build on"
    )
    export = add(
        "export",
        "write all rows of each table to a sparse-parameter file, and dense variables to a NumPy archive",
        _export,
        _ONE,
    )
    export.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="made if it is not there, else empty")
    given = parser.parse_args(list(arguments))
    if not given.directory.is_dir():
        parser.error(f"{given.directory} is no directory")
    if given.command == "compact" and CheckpointDirectory.names(given.directory):
        parser.error(f"{given.directory} is a checkpoint. compact takes the directory that it is in")
    if given.command == "export" and given.to.exists() and not given.to.is_dir():
        parser.error(f"--to {given.to} is there, and no folder")
    try:
        status: int = given.run(given)
    except (TableError, OSError) as error:
        print(f"tf-sparse-ps checkpoint {given.command}: {error}", file=sys.stderr)
        return 2
    return status


def _positive(text: str) -> int:
    if not text.isdecimal() or (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1. Received: {text!r}")
    return number


# --- list, verify ---


def _list(given: argparse.Namespace) -> int:
    look = _verify if given.command == "verify" else directory.look
    paths = [one.path for one in CheckpointDirectory(given.directory).find()]
    if not paths and CheckpointDirectory.names(given.directory):
        paths = [given.directory.resolve()]
    found = [_facts(path, look) for path in paths]
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        for one in found:
            print(_line(one))
    if not found:
        print(f"{given.directory} has no checkpoints", file=sys.stderr)
    return 0 if found and all(one["problem"] is None for one in found) else 1


def _verify(path: Path) -> Checked:
    with bar(0, f"check {path.name}") as shown:
        checked = directory.check(path, lambda _, n: shown.update(n))
    content = checked.manifest
    for number in range(len(content.tables)):
        StoredRows(checked, number)  # or it raises
    for one in content.files:
        if one.name.endswith(".npz"):
            said, _ = array_file.read(path / one.name)
            if (found := {name: said.get(name) for name in content.stamp}) != content.stamp:
                raise StateError(f"{path / one.name} is of {found}, and the other parts of {content.stamp}")
    return checked


def _facts(path: Path, look: Callable[[Path], Checked]) -> dict[str, Any]:
    try:
        content: Manifest = look(path).manifest
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
        "tables": [one["name"] for one in content.tables],
        "builds_on": [one.name for one in content.chain],
        "bytes": sum(one.size for one in content.files),
        "versions": content.versions,
    }


def _line(facts: dict[str, Any]) -> str:
    if facts["problem"] is not None:
        return f"{facts['name']}  NOT WHOLE: {facts['problem']}"
    where = f"epoch {facts['epoch']}, batch {facts['batch']}"
    chain = facts["builds_on"]
    alone = "" if facts["node"] is None else f", what machine {facts['node']} has"
    added = f", increment {len(chain)} of {chain[0]}" if chain else ""
    return (
        f"{facts['name']}  {where}, {_count(len(facts['tables']), 'table')}, {facts['bytes'] / 1e6:.1f} MB, "
        f"of {_count(facts['ranks'], 'rank')} on {_count(facts['nodes'], 'machine')}{alone}{added}"
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


# --- diff, compact, export ---


def _newest(path: Path) -> Checked:
    """A checkpoint, or the newest whole one in a directory."""
    if CheckpointDirectory.names(path):
        return directory.check(path)
    found, _ = CheckpointDirectory(path).newest()
    if found is None:
        raise NotFoundError(f"{path} has no checkpoint that is whole")
    return found


def _diff(given: argparse.Namespace) -> int:
    if given.other is not None:
        old, new = _newest(given.directory), _newest(given.other)
    else:
        whole = CheckpointDirectory(given.directory).whole(2)
        if len(whole) < 2:
            raise NotFoundError(f"{given.directory} has no two checkpoints that are whole")
        new, old = whole
    found = comparison.compare(old, new)
    if given.json:
        print(json.dumps(found, indent=1))
        return 0 if found["equal"] else 1
    print(f"{found['old']['name']} (step {found['old']['step']}), {found['new']['name']} (step {found['new']['step']})")
    for name, rows in found["tables"].items():
        counts = ", ".join(f"{n} {what}" for what, n in rows.items() if what != "only_in")
        print(f"table {name}: " + (counts or f"only in {found[rows['only_in']]['name']}"))
    for what, names in found["variables"].items():
        for name in names:
            print(f"variable {name}: {what.replace('_', ' ')}")
    return 0 if found["equal"] else 1


def _compact(given: argparse.Namespace) -> int:
    done = compaction.compact(given.directory, given.keep)
    if given.json:
        facts = {
            "checkpoint": done.checkpoint.name,
            "merged": done.merged,
            "removed": done.removed,
            "bytes": done.bytes,
        }
        print(json.dumps(facts, indent=1))
        return 0
    what = f"merged from {len(done.merged)}" if done.merged else "builds on no other one"
    print(f"{done.checkpoint.name}  {done.bytes / 1e6:.1f} MB, {what}")
    for name in done.removed:
        print(f"{name}  removed")
    return 0


def _export(given: argparse.Namespace) -> int:
    checkpoint = _newest(given.directory)
    files = exports.export(checkpoint, given.to)
    if given.json:
        print(json.dumps({"checkpoint": checkpoint.path.name, "folder": str(given.to), "files": files}, indent=1))
        return 0
    for name in files:
        print(given.to / name)
    return 0
