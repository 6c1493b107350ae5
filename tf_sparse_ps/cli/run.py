"""`tf-sparse-ps run`: starts the ranks of a job. Imports neither TensorFlow nor NumPy."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from tf_sparse_ps import launch
from tf_sparse_ps.cli.command import PATH, Command, mistake
from tf_sparse_ps.cli.metrics import PORT, check_package
from tf_sparse_ps.launch import Options

# A process that has one of these variables is a rank.
_RANK_VARIABLES = ("TFSPS_RANK", "HOROVOD_RANK")
_EPILOG = """\
One launcher runs on each machine. On one machine:

\b
  tf-sparse-ps run -np 4 python train.py

On two machines, the same command with another --node-rank on each:

\b
  tf-sparse-ps run --nnodes 2 --node-rank 0 --coordinator host0:29400 -np 4 python train.py
  tf-sparse-ps run --nnodes 2 --node-rank 1 --coordinator host0:29400 -np 4 python train.py

Exit status: 0 if all ranks ended with 0; else the status of the rank that failed first, or 128 + N if signal N ended
it; 128 + N if the launcher got signal N (130 after Ctrl-C, 143 after SIGTERM); 2 for a mistake in the arguments.
"""


@click.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] -np N",
    epilog=_EPILOG,
)
@click.option("-np", "--nproc-per-node", "ranks", type=int, required=True, metavar="N", help="Ranks on this machine.")
@click.option("--nnodes", type=int, metavar="N", help="Machines, each with a launcher (default: 1).")
@click.option("--node-rank", type=int, default=0, metavar="K", help="Number of this machine, from 0 on (default: 0).")
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    help="Machine of node rank 0, and a free port there; the same on all machines.",
)
@click.option(
    "--collectives",
    type=click.Choice(("auto", "tensorflow", "horovod")),
    default="auto",
    help="Library that connects the ranks (default: auto, Horovod if it is installed and works here).",
)
@click.option(
    "--timeout", type=float, default=600.0, metavar="S", help="Seconds launchers wait for each other (default: 600)."
)
@click.option(
    "--grace",
    type=float,
    default=30.0,
    metavar="S",
    help="Seconds from SIGTERM to SIGKILL for the ranks after the launcher got a signal (default: 30).",
)
@click.option(
    "--log-dir",
    type=PATH,
    metavar="DIR",
    help="Write the whole output of every rank to DIR/rank-<r>.log.",
)
@click.option(
    "--all-ranks",
    is_flag=True,
    help="Show the output of all ranks, each line with its rank, instead of rank 0's output only.",
)
@click.option(
    "--metrics-port",
    type=PORT,
    metavar="P",
    help="Serve metrics of this job for Prometheus at 127.0.0.1 and this port, while the job runs.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENTS]...")
def command(**arguments: Any) -> int:
    """Starts a program on several ranks. If one rank fails, ends all of them.

    A job that used tables ends with a line on its speed and largest wait. Options stand before the program. All words
    after it belong to the program.
    """
    return launch.run(options(**arguments))


def options(
    ranks: int,
    nnodes: int | None,
    node_rank: int,
    coordinator: str | None,
    collectives: str,
    timeout: float,
    grace: float,
    log_dir: Path | None,
    all_ranks: bool,
    metrics_port: int | None,
    program: tuple[str, ...],
) -> Options:
    """Returns the options of a launcher. The arguments are those of the command.

    Raises:
      click.UsageError: The arguments do not fit together.
    """
    for variable in _RANK_VARIABLES:
        if variable in os.environ:
            mistake(
                f"{variable}={os.environ[variable]} is set: this process is itself a rank that a launcher has started. "
                "Start the job outside of that job, or unset the variable"
            )
    if ranks < 1:
        mistake(f"-np must be 1 or more, the number of ranks on this machine. Received: {ranks}")
    given_nnodes, nnodes = nnodes, 1 if nnodes is None else nnodes
    if nnodes < 1:
        mistake(f"--nnodes must be 1 or more. Received: {nnodes}")
    if not 0 <= node_rank < nnodes:
        mistake(f"--node-rank must be 0 to {nnodes - 1} with --nnodes {nnodes}. Received: {node_rank}")
    if not 0 < timeout < float("inf"):
        mistake(f"--timeout must be a number of seconds greater than 0. Received: {timeout}")
    if not 0 <= grace < float("inf"):
        mistake(f"--grace must be a number of seconds of at least 0. Received: {grace}")
    if metrics_port is not None:
        check_package("--metrics-port")
    address = _address(coordinator)
    if given_nnodes is None and address is not None:
        mistake(f"--coordinator is for jobs on several machines. Give --nnodes, too. Received: {coordinator!r}")
    if nnodes > 1 and address is None:
        mistake(
            "--nnodes greater than 1 needs --coordinator HOST:PORT, the same on all machines. HOST is the machine of "
            "node rank 0"
        )
    return Options(
        ranks=ranks,
        nnodes=nnodes,
        node_rank=node_rank,
        coordinator=address if nnodes > 1 else None,
        collectives=_collectives(collectives),
        by_name=collectives != "auto",
        timeout_s=timeout,
        grace_s=grace,
        log_dir=log_dir,
        all_ranks=all_ranks,
        metrics_port=metrics_port,
        command=_command(program),
    )


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([^\s:/\[\]]+):(\d{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        mistake(
            f"--coordinator must be HOST:PORT, the name or IPv4 address of a machine and a port. Received: {text!r}"
        )
    return match[1], int(match[2])


def _collectives(chosen: str) -> str:
    installed = importlib.util.find_spec("horovod") is not None
    if chosen == "horovod" and not installed:
        mistake(
            f"--collectives horovod: Horovod is not installed for {sys.executable}. Install it, or use --collectives "
            "tensorflow"
        )
    if chosen == "auto":
        return "horovod" if installed else "tensorflow"
    return chosen


def _command(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words:
        mistake("the program to run is missing. For example: tf-sparse-ps run -np 4 python train.py")
    path = shutil.which(words[0])
    if path is None:
        hint = ""
        if os.path.isfile(words[0]):
            remedy = f". Run it with: python {words[0]}" if words[0].endswith(".py") else ""
            hint = f". It is a file that cannot be executed{remedy}"
        mistake(f"no such program: {words[0]!r}{hint}")
    return (path, *words[1:])
