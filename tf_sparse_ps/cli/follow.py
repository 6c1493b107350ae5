"""`tf-sparse-ps follow`: copies new versions to a serving machine. Needs no TensorFlow."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import click

from tf_sparse_ps.cli.command import Command, check_every, json_option, mistake, positive_integer
from tf_sparse_ps.errors import TableError
from tf_sparse_ps.serving.follow import Follower
from tf_sparse_ps.serving.sources import source as source_of
from tf_sparse_ps.serving.upload import Uploader


@click.command(cls=Command)
@click.argument("source")
@click.argument("directory", metavar="DEST")
@click.option("--keep", type=positive_integer, default=3, metavar="N", help="Versions to keep (default: 3).")
@click.option("--every", type=float, default=5.0, metavar="S", help="Seconds between looks (default: 5).")
@click.option("--once", is_flag=True, help="Look once, copy what is new, and end.")
@click.option("--pin", type=int, metavar="N", help="Make version N the newest one until --unpin, and end.")
@click.option("--unpin", is_flag=True, help="Copy newer versions again, and end.")
@click.option("--rollback", is_flag=True, help="Remove the newest version, do not copy it again, and end.")
@json_option
def command(
    source: str,
    directory: str,
    keep: int,
    every: float,
    once: bool,
    pin: int | None,
    unpin: bool,
    rollback: bool,
    as_json: bool,
) -> int:
    """Copies new versions to a serving machine, only the files that it lacks.

    SOURCE is a directory of versions: a path or a URL, such as s3://b/serve. DEST is the directory that servers watch;
    or a URL, from where they follow in turn. The command runs until it is ended, unless --once or a selection is given.
    With --json it prints a line for each version.
    """
    selections = (pin is not None) + unpin + rollback
    check_every(every)
    if selections > 1:
        mistake("--pin, --unpin and --rollback exclude each other. Give one of them")
    if "://" in directory and selections:
        mistake(f"versions are selected where servers map them. Received: {directory}")
    if "://" in directory:
        return _follow(Uploader(source_of(source), directory, keep=keep), every, once=once, as_json=as_json)
    follower = Follower(source_of(source), Path(directory), keep=keep)
    if pin is not None:
        follower.pin(pin)
    elif unpin:
        follower.unpin()
    elif rollback:
        click.echo(f"{directory} has version {follower.roll_back()} as its newest")
    else:
        return _follow(follower, every, once=once, as_json=as_json)
    return 0


def _follow(follower: Follower | Uploader, every: float, *, once: bool, as_json: bool) -> int:
    """Copies new versions. Errors of the source do not end it unless --once is given."""
    reported = ""
    while True:
        try:
            copied = follower.copy_newest()
            reported = ""
        except BrokenPipeError:
            raise
        except (TableError, OSError) as error:
            if once:
                raise
            if str(error) != reported:
                reported = str(error)
                click.echo(f"tf-sparse-ps follow: {error}. Trying again", err=True)
            copied = None
        if copied is not None:
            version, size = copied
            facts = {"version": os.fspath(version), "bytes": size}
            text = f"{version} is there; {size / 1e6:.1f} MB were copied"
            click.echo(json.dumps(facts) if as_json else text)
        if once:
            return 0
        time.sleep(every)
