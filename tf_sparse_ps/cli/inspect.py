"""`tf-sparse-ps inspect`: what a group, a table, a sparse-parameter file, a checkpoint or a served version contains."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tf_sparse_ps.cli import groups, histograms
from tf_sparse_ps.cli.command import PATH, Command, json_option, mistake, table_option
from tf_sparse_ps.cli.display import count, duration, print_facts, print_json, print_table, size
from tf_sparse_ps.cli.objects import StoredObject, open_object
from tf_sparse_ps.stored.contents import Content


@click.command(cls=Command)
@click.argument("path", type=PATH)
@table_option
@click.option("--keys", is_flag=True, help="Print the keys of one table instead, a line for each.")
@click.option("--histogram", is_flag=True, help="Read all rows, and count them by norm, age and uses.")
@json_option
def command(path: Path, table: str | None, keys: bool, histogram: bool, as_json: bool) -> int:
    """Shows what PATH contains: configuration, rows, bytes of each plane, load of the index, tiers, shard, policies.

    PATH is a group, a table, a sparse-parameter file, a checkpoint or a served version; or a directory of checkpoints
    or versions, whose newest is taken.
    """
    if keys and histogram:
        mistake("--keys and --histogram exclude each other. Give one of them")
    stored = open_object(path)
    if keys:
        _print_keys(stored, stored.table(table), as_json=as_json)
        return 0
    tables = list(stored.tables) if table is None else [stored.table(table)]
    facts = [content.facts() | {"histograms": histograms.of(content) if histogram else None} for content in tables]
    if as_json:
        print_json(
            {
                "path": os.fspath(stored.path),
                "kind": stored.kind,
                "step": stored.step,
                "facts": stored.facts,
                "tables": facts,
            }
        )
    else:
        _print(stored, facts)
    return 0


def _print_keys(stored: StoredObject, content: Content, *, as_json: bool) -> None:
    """Prints the keys of a table while they are read."""
    parts = content.key_parts()
    first = next(parts, None)  # before anything is printed, so that damage at the beginning leaves no half document
    texts = (map(str, part.tolist()) for part in (() if first is None else itertools.chain([first], parts)))
    if not as_json:
        for text in texts:
            click.echo("\n".join(text))
        return
    head = json.dumps({"path": os.fspath(stored.path), "table": content.name})
    click.echo(f'{head[:-1]}, "keys": [', nl=False)
    separator = ""
    for text in texts:
        click.echo(separator + ", ".join(text), nl=False)
        separator = ", "
    click.echo("]}")


def _print(stored: StoredObject, tables: list[dict[str, Any]]) -> None:
    print_facts([(stored.kind.replace("_", " "), os.fspath(stored.path)), *_object_rows(stored)])
    for table in tables:
        click.echo()
        print_facts(_table_rows(table))
        for histogram in table["histograms"] or ():
            title = {"norm": "NORM", "age": "AGE IN STEPS", "uses": "USES"}[histogram["of"]]
            click.echo()
            print_table((title, "ROWS", ""), histograms.lines(histogram), right=("ROWS",))


def _object_rows(stored: StoredObject) -> Iterator[tuple[str, str]]:
    facts = stored.facts
    yield "step", count(stored.step)
    if owner := facts.get("owner"):
        since = duration(groups.seconds_since(owner["since"]))
        alive = f"alive for {since}" if owner["since"] else "alive" if owner["alive"] else "dead"
        yield "owner", f"pid {owner['pid']}, {alive}"
    if facts.get("unfinished"):
        yield "unfinished", "the owner was killed in a step, which readers do not see"
    if "epoch" in facts:
        yield "position", f"epoch {facts['epoch']}, batch {facts['batch']}"
        yield "saved by", f"{facts['ranks']} ranks on {facts['nodes']} machines"
        if facts["job"]:
            yield "job", facts["job"]
        if facts["builds_on"]:
            yield "builds on", ", ".join(facts["builds_on"])
    if "variables" in facts:
        yield "variables", count(facts["variables"])
        if facts["versions"]:
            yield "written with", ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    yield "bytes", size(facts["bytes"])


def _table_rows(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "table", table["name"]
    yield "rows", count(table["rows"]) + ("" if table["rows_are_exact"] else " at most")
    yield "row", f"{table['dim']} x {table['dtype']}"
    yield "keys", "any int64" if table["key_limit"] is None else f"0 to {table['key_limit'] - 1:,}"
    if table["max_rows"]:
        yield "max_rows", count(table["max_rows"])
    yield "initializer", _initializer(table["initializer"])
    rule = table["optimizer"]
    slots = ", ".join(f"{slot['name']} ({slot['width']})" for slot in rule["slots"])
    yield "optimizer", rule["kind"] + (f", slots {slots}" if slots else "")
    if table["metadata"]:
        planes = (f"{plane['name']} {plane['type']}[{plane['elements']}]" for plane in table["metadata"])
        yield "metadata", ", ".join(planes)
    if table["shard"]:
        yield "shard", f"node {table['shard']['node']} of {table['shard']['nodes']}"
    yield "planes", ", ".join(f"{plane['name']} {size(plane['bytes'])}" for plane in table["planes"])
    if index := table["index"]:
        yield "index", f"{size(index['bytes'])}, {index['load']:.0%} full, segments: {count(index['segments'])}"
    if tiers := table["tiers"]:
        yield (
            "on disk",
            f"{count(tiers['rows_on_disk'])} rows, {size(tiers['bytes_on_disk'])} in {tiers['folder']}; memory "
            f"{size(tiers['memory'])}",
        )
    if table["policies"]:
        yield "policies", "; ".join(f"{name} {_policy(policy)}" for name, policy in table["policies"].items())
    if table.get("evicted_unused") or table.get("evicted_excess"):
        unused, excess = count(table["evicted_unused"]), count(table["evicted_excess"])
        yield "evicted", f"{unused} unused rows, {excess} rows above max_rows"
    if table.get("admitted") or table.get("gradients_dropped"):
        dropped = count(table["gradients_dropped"])
        yield "admitted", f"{count(table['admitted'])} keys; {dropped} gradients of keys without a row were dropped"
    for file in table.get("files", ()):
        kind = "layer" if file["layer"] else "base"
        yield kind, f"{file['name']}: {count(file['keys'])} keys, {count(file['rows'])} rows, {size(file['bytes'])}"
    if "absent" in table:
        yield "stored as", f"{table['stored_as']}; absent keys read {table['absent']} values"
    if table.get("device_dirty_since_step") is not None:
        yield "newer rows", f"on a device, since step {table['device_dirty_since_step']}"


def _policy(policy: dict[str, Any]) -> str:
    """Returns the options of a policy that are set."""
    return ", ".join(f"{name}={value}" for name, value in policy.items() if value not in (None, False, [], ()))


def _initializer(initializer: dict[str, Any]) -> str:
    names = {"constant": "a", "uniform": "ab", "normal": "ab", "truncated_normal": "ab"}.get(initializer["kind"], "")
    numbers = ", ".join(f"{initializer[name]:g}" for name in names)
    return initializer["kind"] + (f" {numbers}" if numbers else "") + f", seed {initializer['seed']}"
