"""`tf-sparse-ps top`: what the jobs of this machine do, at each interval."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator

import click

from tf_sparse_ps.cli.command import Command, check_every, json_option, mistake, positive_integer
from tf_sparse_ps.cli.display import make_console, show
from tf_sparse_ps.cli.top_view import document, renderables
from tf_sparse_ps.monitoring.watch import FolderView, Watch
from tf_sparse_ps.node import job_folder


@click.command(cls=Command)
@click.argument("job", required=False)
@click.option("--every", type=float, default=2.0, metavar="S", help="Seconds between two views (default: 2).")
@click.option("--count", type=positive_integer, metavar="N", help="End after N views.")
@click.option("--once", is_flag=True, help="Print one view as plain text, and end.")
@click.option("--plain", is_flag=True, help="Print the views one after the other, for a log.")
@json_option
def command(job: str | None, every: float, count: int | None, once: bool, plain: bool, as_json: bool) -> int:
    """Shows what the jobs of this machine do: speed, hit rates, bytes and waits, and the state of each rank.

    JOB is the name of a job or group; without it, all jobs of this user are shown. Rates are those of the last
    interval, so the first view comes after one interval. The last figures of a job that has ended stay. The command
    runs until Ctrl-C, unless --count or --once is given. It only reads. Outside of a terminal, it prints as with
    --plain. With --json it prints a line for each view.
    """
    check_every(every)
    if once and count is not None:
        mistake("--once and --count exclude each other. Give one of them")
    if plain and as_json:
        mistake("--plain and --json exclude each other. Give one of them")
    watch = Watch(os.path.abspath(job_folder.default()), job)
    watch.look()
    views = _views(watch, every, 1 if once else count)
    if as_json:
        for view in views:
            click.echo(json.dumps(document(view), allow_nan=False))
            sys.stdout.flush()
    elif plain or once or not sys.stdout.isatty():
        for number, view in enumerate(views):
            if number:
                click.echo()
            for part in renderables(view):
                click.echo(part) if isinstance(part, str) else show(part)
            sys.stdout.flush()
    else:
        _show_live(views)
    return 0


def _views(watch: Watch, every: float, count: int | None) -> Iterator[FolderView]:
    due_at = time.monotonic()
    for number in itertools.count(1):
        due_at = max(due_at + every, time.monotonic())
        time.sleep(max(due_at - time.monotonic(), 0.0))
        yield watch.look()
        if number == count:
            return


def _show_live(views: Iterator[FolderView]) -> None:
    """Replaces each view by the next one. The last one stays on the terminal."""
    from rich.console import Group  # imported here, because JSON and plain text do not need it
    from rich.live import Live  # for the same reason

    with Live("waiting for the first interval", console=make_console(), auto_refresh=False) as live:
        for view in views:
            live.update(Group(*renderables(view)), refresh=True)
