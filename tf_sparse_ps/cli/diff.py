"""`tf-sparse-ps diff`: compares two tables, files, checkpoints or versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from tf_sparse_ps.checkpoints import comparison, stored_checkpoint
from tf_sparse_ps.cli.command import PATH, Command, json_option, table_option
from tf_sparse_ps.cli.comparing import compare
from tf_sparse_ps.cli.display import count, print_json
from tf_sparse_ps.cli.objects import StoredObject, open_object
from tf_sparse_ps.stored.contents import Content
from tf_sparse_ps.table.groups import plain_name


@click.command(cls=Command)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@table_option
@json_option
def command(a: Path, b: Path, table: str | None, as_json: bool) -> int:
    """Compares A and B, of which each is as PATH of `inspect`. The exit status is 1 if they differ.

    Tables are matched by their names, or if both have one, with each other. Rows are compared bit by bit: by a checksum
    of 64 bits. Slots and metadata are compared if both have the same ones, and dense variables of checkpoints. A live
    table may change meanwhile; stop its job, or compare copies of it.
    """
    sides = open_object(a), open_object(b)
    pairs = _pairs(*sides, table)
    tables = {name: _facts(*pair) for name, pair in pairs.items()}
    variables = None
    if sides[0].kind == sides[1].kind == "checkpoint" and table is None:
        variables = comparison.compare_variables(*(stored_checkpoint.look(side.path) for side in sides))
    equal = all(facts["equal"] for facts in tables.values()) and not any((variables or {}).values())
    facts = {
        "equal": equal,
        "a": _side(sides[0]),
        "b": _side(sides[1]),
        "tables": tables,
        "variables": variables,
    }
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    return 0 if equal else 1


def _side(stored: StoredObject) -> dict[str, Any]:
    return {"path": os.fspath(stored.path), "kind": stored.kind, "step": stored.step}


def _pairs(a: StoredObject, b: StoredObject, name: str | None) -> dict[str, tuple[Content | None, Content | None]]:
    counts = a.sketches or b.sketches if a.kind == b.kind else ()
    if name is not None or (len(a.tables) == len(b.tables) == 1 and not counts):
        pair = a.table(name), b.table(name)
        return {plain_name(pair[0].name): pair}
    sides = [(*side.tables, *side.sketches) if counts else side.tables for side in (a, b)]
    by_name = [{plain_name(table.name): table for table in side} for side in sides]
    return {key: (by_name[0].get(key), by_name[1].get(key)) for key in dict.fromkeys([*by_name[0], *by_name[1]])}


def _facts(a: Content | None, b: Content | None) -> dict[str, Any]:
    if a is None or b is None:
        return {"equal": False, "only_in": "a" if b is None else "b"}
    return {"only_in": None, **compare(a, b)}


def _print(facts: dict[str, Any]) -> None:
    for side in ("a", "b"):
        click.echo(f"{side.upper()}: {facts[side]['path']}, step {count(facts[side]['step'])}")
    for name, table in facts["tables"].items():
        _print_table(name, table)
    for kind, names in (facts["variables"] or {}).items():
        for name in names:
            click.echo(f"variable {name}: {kind.replace('_', ' ').replace('old', 'A').replace('new', 'B')}")


def _print_table(name: str, table: dict[str, Any]) -> None:
    if table["only_in"]:
        click.echo(f"table {name}: only in {table['only_in'].upper()}")
        return
    for setting, (a, b) in table["settings"].items():
        click.echo(f"table {name}: {setting} is {a} in A, and {b} in B")
    if table["rows"] is None:
        return
    words = {"equal": "equal", "different": "different", "only_a": "only in A", "only_b": "only in B"}
    click.echo(f"table {name}: " + ", ".join(f"{count(table['rows'][kind])} {text}" for kind, text in words.items()))
    if largest := table["largest_difference"]:
        gap = "infinite" if largest["difference"] is None else f"{largest['difference']:g}"
        click.echo(f"table {name}: the largest difference is {gap}, in {largest['plane']} of key {largest['key']}")
    for kind, keys in table["examples"].items():
        if keys:
            more = " ..." if table["rows"][kind] > len(keys) else ""
            click.echo(f"table {name}: {words[kind]}: {' '.join(map(str, keys))}{more}")
