"""`tf-sparse-ps checkpoint list | verify DIR`: what is in a directory of checkpoints. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tf_sparse_ps import _table
from tf_sparse_ps.checkpoints import array_file, directory
from tf_sparse_ps.checkpoints.manifest import Manifest
from tf_sparse_ps.errors import StateError, TableError
from tf_sparse_ps.table.progress import bar


def main(arguments: Sequence[str]) -> int:
    """Runs a command.

    Args:
      arguments: Behind `tf-sparse-ps checkpoint`.

    Returns:
      The exit status: 0; 1 if there is no checkpoint, or one is incomplete or damaged.

    Raises:
      SystemExit: A mistake in the arguments, with status 2; or help was asked for.
    """
    parser = argparse.ArgumentParser("tf-sparse-ps checkpoint", description="Checkpoints of training jobs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, text in (
        ("list", "name the checkpoints, the newest first, with what their manifests say; reads no other file"),
        ("verify", "read all files, compare checksums, and the steps of tables with that of the dense weights"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("directory", type=Path, metavar="DIR", help="where the checkpoints are")
        command.add_argument("--json", action="store_true", help="print one JSON array")
    given = parser.parse_args(list(arguments))
    if not given.directory.is_dir():
        parser.error(f"{given.directory} is no directory")
    look = _verify if given.command == "verify" else lambda path: directory.look(path).manifest
    found = [_facts(one.path, look) for one in directory.CheckpointDirectory(given.directory).find()]
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        for one in found:
            print(_line(one))
    if not found:
        print(f"{given.directory} has no checkpoints", file=sys.stderr)
    return 0 if found and all(one["problem"] is None for one in found) else 1


def _verify(path: Path) -> Manifest:
    with bar(0, f"check {path.name}") as shown:
        content = directory.check(path, lambda _, n: shown.update(n)).manifest
    for table in content.tables:
        file = path / str(table["file"])
        step = _table.ParameterFileReader(str(file)).info()["step"]
        if step != content.table_step:
            raise StateError(f"{file} is of step {step}, and the other parts of step {content.table_step}")
    expected = {"step": content.step, "table_step": content.table_step, "id": content.id}
    for one in content.files:
        if one.name.endswith(".npz"):
            said, _ = array_file.read(path / one.name)
            if (found := {name: said.get(name) for name in expected}) != expected:
                raise StateError(f"{path / one.name} is of {found}, and the other parts of {expected}")
    return content


def _facts(path: Path, look: Callable[[Path], Manifest]) -> dict[str, Any]:
    try:
        content = look(path)
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
        "job": content.job,
        "tables": [one["name"] for one in content.tables],
        "bytes": sum(one.size for one in content.files),
        "versions": content.versions,
    }


def _line(facts: dict[str, Any]) -> str:
    if facts["problem"] is not None:
        return f"{facts['name']}  NOT WHOLE: {facts['problem']}"
    where = f"epoch {facts['epoch']}, batch {facts['batch']}"
    return (
        f"{facts['name']}  {where}, {len(facts['tables'])} tables, {facts['bytes'] / 1e6:.1f} MB, "
        f"of {facts['ranks']} ranks on {facts['nodes']} machines"
    )
