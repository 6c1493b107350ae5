"""`tf-sparse-ps ls`: the groups of tables on this machine."""

from __future__ import annotations

import os
from typing import Any

import click

from tf_sparse_ps.cli import groups
from tf_sparse_ps.cli.command import Command, json_option
from tf_sparse_ps.cli.display import count, duration, print_json, print_table, size
from tf_sparse_ps.node import job_folder

_COLUMNS = ("GROUP", "STATE", "OWNER", "TABLES", "ROWS", "MEMORY", "DISK", "STEP", "AGE", "WRITTEN")


@click.command(cls=Command)
@json_option
def command(as_json: bool) -> int:
    """Lists the groups of tables on this machine.

    They are in TFSPS_DIR, or else in /dev/shm/tf_sparse_ps-<uid>. A group is running; kept, if it belongs to a named
    job that has ended; or remains, if it belongs to an unnamed job that was killed. The exit status is 1 if a group is
    damaged.
    """
    folder = os.path.abspath(job_folder.default())
    found = groups.in_folder(folder)
    if not os.environ.get("TFSPS_DIR"):
        found += groups.of_others(folder)
    if as_json:
        print_json({"folder": folder, "groups": found})
    elif not found:
        click.echo(f"{folder} has no tables", err=True)
    else:
        print_table(_COLUMNS, map(_row, found), right=_COLUMNS[3:])
        for facts in found:
            if facts["state"] == "damaged":
                click.echo(f"{facts['name']}: {facts['fault']}")
    return 1 if any(facts["state"] == "damaged" for facts in found) else 0


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    return (
        facts["name"],
        facts["state"],
        _owner(facts),
        str(len(facts["tables"])) if facts["owner"] else "-",
        count(facts["rows"]),
        size(facts["bytes"]),
        size(facts["bytes_on_disk"]),
        count(facts["step"]),
        duration(groups.seconds_since(facts["created"])),
        duration(groups.seconds_since(facts["written"])),
    )


def _owner(facts: dict[str, Any]) -> str:
    owner = facts["owner"]
    if owner is None:
        return f"user {facts['user']}"
    process = "?" if owner["pid"] is None else f"pid {owner['pid']}"
    if not owner["alive"]:
        return f"{process}, dead"
    since = duration(groups.seconds_since(owner["since"]))
    return f"{process}, alive" + ("" if owner["since"] is None else f" for {since}")
