"""`end_group`: closes and removes, or keeps, a node's group at the exit of its leader."""

from __future__ import annotations

import os

from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.config.admission import SKETCH
from tf_sparse_ps.node import job_folder
from tf_sparse_ps.table import groups


def end_group(group_path: str, exchange_path: str, pid: int, *, keep: bool) -> None:
    """Releases the writer lock at the leader's exit, and removes the files that the next job does not need.

    If an unnamed job has run out of room, its tables are kept, because it could not save what it has trained. In a
    forked child of the leader, this function does nothing.

    Args:
      group_path: The group's directory.
      exchange_path: The folder in it that belongs to this run.
      pid: The process id of the leader.
      keep: Whether the job is named, so that the next job of this name uses its tables.
    """
    if os.getpid() != pid or not os.path.isdir(group_path):
        return
    kept = ""
    with eager_ops(f"closing {group_path}") as _ops:
        if not keep and _ops.out_of_room():
            kept = _tables_with_rows(group_path)
        _ops.close_group(group_path)
    if keep or kept:
        job_folder.remove_folder(exchange_path)
    else:
        job_folder.remove_group(group_path)
    if kept:
        job_folder.say(
            f"this job ran out of room. Its tables are kept until the next job of this user starts: {group_path} "
            f"({job_folder.mebibytes(group_path)}: {kept}). To save a table, call "
            f"tsps.Table.open('{group_path}/<table>').save(folder)"
        )


def _tables_with_rows(group_path: str) -> str:
    """Returns names and numbers of rows of the tables that have rows, in words; "" if none has."""
    group = groups.open_group(group_path)
    tables = [(group.table_info(i)["name"], group.stats(i)["rows"]) for i in group.tables()]
    sketches = {name + SKETCH for name, _ in tables}
    return ", ".join(f"{name} with {rows:,} rows" for name, rows in tables if rows and name not in sketches)
