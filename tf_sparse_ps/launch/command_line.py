"""The command line of `tf-sparse-ps`: its options, their checks, and the exit status."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tf_sparse_ps.errors import LaunchError
from tf_sparse_ps.launch import horovod_check, supervision
from tf_sparse_ps.launch.options import Options
from tf_sparse_ps.launch.output import say

# A process that has one of these variables is a rank.
_RANK_VARIABLES = ("TFSPS_RANK", "HOROVOD_RANK")
_EPILOG = """\
One launcher runs on each machine. On one machine:

  tf-sparse-ps run -np 4 python train.py

On two machines, the same command with another --node-rank on each:

  tf-sparse-ps run --nnodes 2 --node-rank 0 --coordinator host0:29400 -np 4 python train.py
  tf-sparse-ps run --nnodes 2 --node-rank 1 --coordinator host0:29400 -np 4 python train.py

Exit status: 0 if all ranks ended with 0; else the status of the rank that failed first, or 128 + N if signal N ended
it; 128 + N if the launcher got signal N (130 after Ctrl-C, 143 after SIGTERM); 2 for a mistake in the arguments.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `tf-sparse-ps`.

    Args:
      arguments: The words of the command line; None: those of this process.

    Returns:
      The exit status.

    Raises:
      SystemExit: The arguments have a mistake (status 2), or they ask for help.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["checkpoint"]:
        from tf_sparse_ps.checkpoints import commands  # imported here, because a launcher starts without NumPy

        return commands.main(words[1:])
    if words[:1] == ["follow"]:
        from tf_sparse_ps.serving import commands as serving  # imported here, because it imports NumPy

        return serving.main(words[1:])
    if words[:1] == ["publish"]:
        from tf_sparse_ps.exporting import commands as exporting  # imported here, because it imports TensorFlow

        return exporting.main(words[1:])
    options = parse(words)
    try:
        return supervision.run(horovod_check.settle(options))
    except LaunchError as error:
        say(str(error))
        return error.status
    except KeyboardInterrupt:  # before the ranks were started
        return 130


def parse(arguments: Sequence[str] | None) -> Options:
    """Returns the options of a command line.

    Args:
      arguments: See `main`.

    Raises:
      SystemExit: The command line has a mistake. It was printed to standard error.
    """
    parser, run = _parsers()
    parsed = parser.parse_args(arguments)
    for variable in _RANK_VARIABLES:
        if variable in os.environ:
            run.error(
                f"{variable}={os.environ[variable]} is set: this process is itself a rank that a launcher has started. "
                "Start the job outside of that job, or unset the variable"
            )
    if parsed.ranks < 1:
        run.error(f"-np must be 1 or more, the number of ranks on this machine. Received: {parsed.ranks}")
    if parsed.nnodes < 1:
        run.error(f"--nnodes must be 1 or more. Received: {parsed.nnodes}")
    if not 0 <= parsed.node_rank < parsed.nnodes:
        run.error(
            f"--node-rank must be 0 to {parsed.nnodes - 1} with --nnodes {parsed.nnodes}. Received: {parsed.node_rank}"
        )
    if not 0 < parsed.timeout < float("inf"):
        run.error(f"--timeout must be a number of seconds greater than 0. Received: {parsed.timeout}")
    if not 0 <= parsed.grace < float("inf"):
        run.error(f"--grace must be a number of seconds of at least 0. Received: {parsed.grace}")
    coordinator = _coordinator(run, parsed.coordinator)
    if parsed.nnodes > 1 and coordinator is None:
        run.error(
            "--nnodes greater than 1 needs --coordinator HOST:PORT, the same on all machines. HOST is the machine of "
            "node rank 0"
        )
    return Options(
        ranks=parsed.ranks,
        nnodes=parsed.nnodes,
        node_rank=parsed.node_rank,
        coordinator=coordinator if parsed.nnodes > 1 else None,
        collectives=_collectives(run, parsed.collectives),
        by_name=parsed.collectives != "auto",
        timeout_s=parsed.timeout,
        grace_s=parsed.grace,
        log_dir=parsed.log_dir,
        all_ranks=parsed.all_ranks,
        command=_command(run, parsed.command),
    )


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser("tf-sparse-ps", description="Shared embedding tables for TensorFlow.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="start the ranks of a job",
        description="Starts a program on several ranks. If one rank fails, ends all of them.",
        usage="tf-sparse-ps run [options] -np N PROGRAM [ARGUMENTS ...]",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands.add_parser("checkpoint", help="list or verify the checkpoints in a directory", add_help=False)
    commands.add_parser("publish", help="write a served version from a checkpoint", add_help=False)
    commands.add_parser("follow", help="copy new served versions to this machine", add_help=False)
    add = run.add_argument
    add("-np", "--nproc-per-node", dest="ranks", type=int, required=True, metavar="N", help="ranks on this machine")
    add("--nnodes", type=int, default=1, metavar="N", help="machines, each with a launcher (default: 1)")
    add("--node-rank", type=int, default=0, metavar="K", help="number of this machine, from 0 on (default: 0)")
    add(
        "--coordinator",
        metavar="HOST:PORT",
        help="machine of node rank 0, and a free port there; the same on all machines",
    )
    add(
        "--collectives",
        choices=("auto", "tensorflow", "horovod"),
        default="auto",
        help="library that connects the ranks (default: auto, Horovod if it is installed and works here)",
    )
    add(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds launchers wait for each other (default: 600)"
    )
    add(
        "--grace",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL for the ranks after the launcher got a signal (default: 30)",
    )
    add("--log-dir", type=Path, metavar="DIR", help="write the whole output of every rank to DIR/rank-<r>.log")
    add(
        "--all-ranks",
        action="store_true",
        help="show the output of all ranks, each line with its rank, instead of rank 0's output only",
    )
    add("command", nargs=argparse.REMAINDER, metavar="PROGRAM", help="program to run, with its arguments")
    return parser, run


def _coordinator(run: argparse.ArgumentParser, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([^\s:/\[\]]+):(\d{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        run.error(
            f"--coordinator must be HOST:PORT, the name or IPv4 address of a machine and a port. Received: {text!r}"
        )
    return match[1], int(match[2])


def _collectives(run: argparse.ArgumentParser, chosen: str) -> str:
    installed = importlib.util.find_spec("horovod") is not None
    if chosen == "horovod" and not installed:
        run.error(
            f"--collectives horovod: Horovod is not installed for {sys.executable}. Install it, or use --collectives "
            "tensorflow"
        )
    if chosen == "auto":
        return "horovod" if installed else "tensorflow"
    return chosen


def _command(run: argparse.ArgumentParser, command: list[str]) -> tuple[str, ...]:
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        run.error("the program to run is missing. For example: tf-sparse-ps run -np 4 python train.py")
    path = shutil.which(words[0])
    if path is None:
        hint = ""
        if os.path.isfile(words[0]):
            remedy = f". Run it with: python {words[0]}" if words[0].endswith(".py") else ""
            hint = f". It is a file that cannot be executed{remedy}"
        run.error(f"no such program: {words[0]!r}{hint}")
    return (path, *words[1:])
