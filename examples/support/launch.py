"""Runs a script on several ranks: the script starts itself again by `tf-sparse-ps run`."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import arguments

if TYPE_CHECKING:
    from tf_sparse_ps.collectives import Collectives


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options `--ranks` and `--collectives`."""
    add = parser.add_argument
    add("--ranks", type=arguments.positive, default=1, help="processes on this machine (default: 1)")
    add(
        "--collectives",
        choices=("auto", "horovod", "tensorflow"),
        default="auto",
        help="library that connects the ranks; auto: Horovod if it is installed, else TensorFlow (default: auto)",
    )


def run(train: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Calls `train(options)` on each of `options.ranks` ranks. Returns the exit status.

    The terminal shows the output of rank 0. The folder `options.out`/logs contains the output of all ranks.
    """
    if is_rank():
        return train(options)
    return start_ranks(options.ranks, options.collectives, options.out / "logs")


def is_rank() -> bool:
    """Whether a launcher has started this process as a rank of a job."""
    return any(name in os.environ for name in ("TFSPS_RANK", "HOROVOD_RANK", "TF_CONFIG"))


def start_ranks(ranks: int, collectives: str, logs: Path, command: list[str] | None = None) -> int:
    """Runs this script with its arguments on ranks of this machine. Returns the exit status.

    Args:
        ranks: the number of ranks.
        collectives: the library that connects them.
        logs: the folder for their output.
        command: the command line after the interpreter (default: that of this script).
    """
    print(f"Starting {ranks} rank{'s' * (ranks > 1)}; logs: {logs}", file=sys.stderr, flush=True)
    job = [sys.executable, *(sys.argv if command is None else command)]
    launcher = [sys.executable, "-m", "tf_sparse_ps", "run", "-np", str(ranks), "--collectives", collectives]
    with subprocess.Popen([*launcher, "--log-dir", str(logs), *job]) as process:

        def pass_on(number: int, _: Any) -> None:
            process.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher receives it, too, and ends its ranks
        status = process.wait()
    return 128 - status if status < 0 else status  # the number that shells use


def engine(ranks: Collectives) -> str:
    """Returns the name of the library that connects the ranks, for output."""
    if ranks.size == 1:
        return "none, there is one rank"
    return {"horovod": "Horovod", "tensorflow": "TensorFlow's collectives"}.get(ranks.kind, ranks.kind)


def begin_rank(seed: int) -> Collectives:
    """Divides the machine's cores among its ranks, joins the job and seeds Keras. Call it before TensorFlow's first op.

    Rank 0 prints the name of the library that connects the ranks.

    Returns:
        The collectives, with this rank and the number of ranks.
    """
    import keras  # imported here, because a script that only starts ranks or prints its help needs no TensorFlow
    import tensorflow as tf

    import tf_sparse_ps as tsps

    ranks_here = int(os.environ.get("TFSPS_LOCAL_SIZE") or os.environ.get("HOROVOD_LOCAL_SIZE") or 1)
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(os.sched_getaffinity(0)) // ranks_here))
    tf.config.threading.set_inter_op_parallelism_threads(2)
    ranks = tsps.init()
    if ranks.rank == 0:
        print(f"Engine that connects the ranks: {engine(ranks)}", file=sys.stderr, flush=True)
    keras.utils.set_random_seed(seed)
    return ranks
