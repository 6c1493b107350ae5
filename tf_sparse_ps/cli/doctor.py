"""`tf-sparse-ps doctor`: checks this machine and its software, and names a remedy for each finding."""

from __future__ import annotations

import os

import click

from tf_sparse_ps.cli import disk_check, machine_checks, software_checks
from tf_sparse_ps.cli.checks import OK, PROBLEM
from tf_sparse_ps.cli.command import Command, json_option
from tf_sparse_ps.cli.display import print_json, print_table
from tf_sparse_ps.node import job_folder


@click.command(cls=Command)
@click.option(
    "--tiers", metavar="DIR", help="Also measure the disk of DIR, the path of tsps.Tiered (64 MiB, at most a second)."
)
@json_option
def command(tiers: str | None, as_json: bool) -> int:
    """Checks this machine and its software: versions, room for tables, limits, name, ports and disk.

    Each finding has its remedy. The exit status is 1 if there is a problem: jobs will fail. A note is not a problem:
    something could be faster or larger. TensorFlow is found and not imported.
    """
    checks = [*software_checks.all_of(), *machine_checks.all_of(os.path.abspath(job_folder.default()))]
    if tiers is not None:
        checks.append(disk_check.tiers(os.path.abspath(os.path.expanduser(tiers))))
    ok = all(check.status != PROBLEM for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": [check._asdict() for check in checks]})
    else:
        print_table(("CHECK", "STATUS", "FINDING"), [check[:3] for check in checks])
        for check in checks:
            if check.status != OK:
                click.echo(f"{check.name}: {check.remedy}")
    return 0 if ok else 1
