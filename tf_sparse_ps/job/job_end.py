"""What becomes of a group when its job ends, at the exit of its leader."""

from __future__ import annotations

import os

from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.node import job_folder
from tf_sparse_ps.table import groups


def end_group(group_path: str, exchange_path: str, pid: int, *, keep: bool) -> None:
    """At the leader's exit: gives up the writer lock, and removes what nobody needs any more. Not in a forked child.

    An unnamed job that could not go on for lack of room has not saved what it has trained: its tables stay, too.

    Args:
      group_path: The group's directory.
      exchange_path: What this run alone had in it.
      pid: The leader's.
      keep: The job is named: its tables are the next one's.
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
            f"this job ran out of room. Its tables are kept until the next job of this user begins: {group_path} "
            f"({job_folder.mebibytes(group_path)}: {kept}). tsps.Table.open('{group_path}/<table>').save(folder) "
            "writes one to a file"
        )


def _tables_with_rows(group_path: str) -> str:
    """In words; empty if there is none, and so nothing to keep."""
    group = groups.open_group(group_path)
    tables = [(group.table_info(i)["name"], group.stats(i)["rows"]) for i in group.tables()]
    return ", ".join(f"{name} with {rows:,} rows" for name, rows in tables if rows)
