"""Runs a script once per rank: it starts itself again, several times under horovodrun."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from support import terminal

if TYPE_CHECKING:
    from tf_sparse_ps.collectives import Collectives


def run(train: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Calls `train(options)` on each of `options.ranks` ranks; returns the exit status.

    The process that starts them shows one progress bar, their messages without TensorFlow's start-up lines, and in the
    end `options.out`/report.txt. `options.out`/ranks.log has all messages.
    """
    if is_rank():
        return train(options)
    status = start_ranks(options.ranks, options.out / "ranks.log")
    if status == 0:
        print((options.out / "report.txt").read_text(), end="")
    return status


def is_rank() -> bool:
    """Whether this process is one rank of a job, started by a launcher or by `start_ranks`."""
    return "HOROVOD_RANK" in os.environ or terminal.attached()


def start_ranks(ranks: int, log: Path, arguments: list[str] | None = None) -> int:
    """Runs this script with its arguments on `ranks` ranks of this machine; returns the exit status.

    Args:
        ranks: number of processes.
        log: file for all they write to stderr.
        arguments: the command line after the interpreter; default: this script's own.

    Raises:
        SystemExit: several ranks, and horovodrun is not installed beside this interpreter.
    """
    command = [*_launcher(ranks), sys.executable, *(sys.argv if arguments is None else arguments)]
    print(f"Starting {ranks} rank{'s' * (ranks > 1)}; log: {log}", file=sys.stderr)
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as log_file:
        shown = terminal.Terminal(Path(folder), log_file)
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, terminal.VARIABLE: str(shown.pipe)}
        job = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        signal.signal(signal.SIGTERM, lambda *_: job.terminate())
        while True:
            try:
                shown.show(job)
                status = job.wait()
                break
            except KeyboardInterrupt:  # the job got it too, and ends its ranks
                continue
        shown.close()
    if status < 0:  # killed by a signal; as shells number it
        status = 128 - status
    if status not in (0, 2):  # 2: a mistake in the options or the data, of which one line tells
        print(f"The job failed with status {status}. All messages: {log}", file=sys.stderr)
    return status


def _launcher(ranks: int) -> list[str]:
    """What stands before the interpreter to start a script on so many ranks."""
    if ranks == 1:
        return []
    beside = Path(sys.executable).with_name("horovodrun")
    horovodrun = str(beside) if beside.exists() else shutil.which("horovodrun")
    if horovodrun is None:
        raise SystemExit(
            f"--ranks {ranks} needs Horovod: no horovodrun in {beside.parent} or on PATH. "
            "`make venv` builds it; --ranks 1 runs without it."
        )
    return [horovodrun, "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]


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
