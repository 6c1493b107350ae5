"""`Options`: the options of a launcher."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a launcher.

    Attributes:
      ranks: The number of ranks on this machine.
      nnodes: The number of machines, each with a launcher.
      node_rank: The number of this machine.
      coordinator: The host and port of node 0's key-value store; None: the job has one machine.
      collectives: "tensorflow" or "horovod".
      by_name: Whether the command line names the collectives. Otherwise they were chosen automatically.
      timeout_s: The time that launchers wait for each other.
      grace_s: The time between SIGTERM and SIGKILL for the ranks, after a signal to a launcher.
      log_dir: The folder for a log of each rank; None: no logs are written.
      all_ranks: Whether the output of all ranks is shown.
      metrics_port: The port at which the launcher serves metrics of the job; None: it serves none.
      command: The full path of the program, and its arguments.
    """

    ranks: int
    nnodes: int
    node_rank: int
    coordinator: tuple[str, int] | None
    collectives: str
    by_name: bool
    timeout_s: float
    grace_s: float
    log_dir: Path | None
    all_ranks: bool
    metrics_port: int | None
    command: tuple[str, ...]
