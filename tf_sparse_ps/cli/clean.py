"""`tf-sparse-ps clean`: removes the tables of jobs that were killed."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from tf_sparse_ps import _table
from tf_sparse_ps.cli.command import Command, json_option, mistake
from tf_sparse_ps.cli.display import print_json
from tf_sparse_ps.errors import AccessError, NotFoundError, WriterLockedError
from tf_sparse_ps.folders import Folder, Trust
from tf_sparse_ps.monitoring import own_groups
from tf_sparse_ps.node import job_folder


@click.command(cls=Command)
@click.option("--job", metavar="NAME", help="Remove the tables of the ended job of this name (TFSPS_JOB) instead.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(job: str | None, yes: bool, as_json: bool) -> int:
    """Removes the tables of unnamed jobs that were killed or ran out of room, from memory and from disks.

    Tables of a running job are never removed. With --job, the tables of a named job on this machine are removed after
    its end: its rows are lost, unless a checkpoint has them.
    """
    folder = os.path.abspath(job_folder.default())
    found = _found(folder, job)
    if not found:
        if as_json:
            print_json({"folder": folder, "removed": []})
        else:
            click.echo(f"{folder} has no tables of killed jobs", err=True)
        return 0
    for path in found:
        click.echo(f"{path} ({job_folder.mebibytes(path)})", err=True)
    removed = _remove(folder, job, found) if yes or _confirmed(len(found)) else []
    if as_json:
        print_json({"folder": folder, "removed": removed})
    else:
        for each in removed:
            click.echo(f"removed {each['path']}")
    return 0


def _confirmed(n: int) -> bool:
    try:
        return click.confirm(f"Remove {n} group{'' if n == 1 else 's'} of tables?", err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            mistake("standard input has ended, so nobody can answer. Give --yes to remove them without a question")
        raise


def _found(folder: str, job: str | None) -> list[str]:
    """Returns the paths of the groups that can be removed.

    Raises:
      AccessError: The folder belongs to another user.
      NotFoundError: There is no job of this name.
      WriterLockedError: The job of this name is running.
    """
    if not os.path.isdir(folder):
        if job is not None:
            raise NotFoundError(f"{folder} does not exist, and has no tables of job {job!r}")
        return []
    own_groups.open_folder(folder).close()
    return job_folder.leftovers(folder) if job is None else _groups_of(folder, job)


def _groups_of(folder: str, job: str) -> list[str]:
    name = re.compile(re.escape(job) + r"-n\d+")
    with Folder.open(folder, Trust.OWN) as opened:
        names = [each for each in opened.names() if name.fullmatch(each) and opened.is_folder(each)]
        for each in names:
            if opened.status(each).st_uid != os.geteuid():
                raise AccessError(f"{folder}/{each} belongs to another user, who can remove it")
    paths = [os.path.join(folder, each) for each in names]
    if not paths:
        raise NotFoundError(f"{folder} has no tables of job {job!r}. `tf-sparse-ps ls` lists the jobs")
    for path in paths:
        if _table.has_writer(path):
            raise WriterLockedError(f"job {job!r} is running: a process writes {path}. Wait for its end, or end it")
    return paths


def _remove(folder: str, job: str | None, confirmed: list[str]) -> list[dict[str, Any]]:
    """Removes groups that are still without a writer. A job that starts meanwhile waits for the lock."""
    removed = []
    with job_folder.locked(folder):
        for path in sorted(set(confirmed) & set(_found(folder, job))):
            size = job_folder.bytes_of(path)
            job_folder.remove_group(path)
            if os.path.lexists(path):
                raise AccessError(f"{path} cannot be removed completely. Remove it as the user who owns what is in it")
            removed.append({"path": path, "bytes": size})
    return removed
