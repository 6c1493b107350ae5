"""Runs a script once per rank: it starts itself again under horovodrun."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_sparse_ps.collectives import Collectives


def run(train: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Calls `train(options)` on each of `options.ranks` ranks; returns the exit status.

    What ranks print has their number before it; so the process that started them prints `options.out`/report.txt.
    """
    if options.ranks == 1 or is_rank():
        return train(options)
    status = start_ranks(options.ranks)
    if status == 0:
        print((options.out / "report.txt").read_text(), end="")
    return status


def is_rank() -> bool:
    """Whether a launcher started this process as one rank of a job."""
    return "HOROVOD_RANK" in os.environ


def start_ranks(ranks: int, arguments: list[str] | None = None) -> int:
    """Runs this script with its arguments on `ranks` ranks of this machine; returns horovodrun's exit status.

    Args:
        ranks: number of processes.
        arguments: the command line after the interpreter; default: this script's own.

    Raises:
        SystemExit: horovodrun is not installed beside this interpreter.
    """
    beside = Path(sys.executable).with_name("horovodrun")
    horovodrun = str(beside) if beside.exists() else shutil.which("horovodrun")
    if horovodrun is None:
        raise SystemExit(
            f"--ranks {ranks} needs Horovod: no horovodrun in {beside.parent} or on PATH. "
            "`make venv` builds it; --ranks 1 runs without it."
        )
    command = [horovodrun, "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}", sys.executable]
    command += sys.argv if arguments is None else arguments
    # horovodrun imports TensorFlow: its greetings are no concern of the user.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    job = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda *_: job.terminate())
    while True:
        try:
            return job.wait()
        except KeyboardInterrupt:  # horovodrun got it too, and ends the ranks
            continue


def begin_rank(seed: int) -> Collectives:
    """Divides the machine's cores among its ranks, joins the job and seeds Keras; call it before TensorFlow's first op.

    Returns:
        this rank, and how many there are.
    """
    import keras  # not above: a script that only starts ranks, or prints its help, needs no TensorFlow
    import tensorflow as tf

    import tf_sparse_ps as tsps

    ranks_here = int(os.environ.get("HOROVOD_LOCAL_SIZE", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(os.sched_getaffinity(0)) // ranks_here))
    tf.config.threading.set_inter_op_parallelism_threads(2)
    ranks = tsps.init()
    keras.utils.set_random_seed(seed)
    return ranks
