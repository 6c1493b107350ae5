"""What a launcher is to start."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Options:
    """What to start.

    Attributes:
      ranks: How many on this machine.
      nnodes: How many machines, each with a launcher.
      node_rank: This machine's number.
      coordinator: Host and port of node 0's key-value store; None: there is one machine.
      collectives: "tensorflow" or "horovod".
      by_name: The command line names it; else it was chosen automatically.
      timeout_s: How long launchers wait for each other.
      log_dir: Folder for a file per rank.
      all_ranks: All ranks' output is shown.
      command: The program, by its full path, and its arguments.
    """

    ranks: int
    nnodes: int
    node_rank: int
    coordinator: tuple[str, int] | None
    collectives: str
    by_name: bool
    timeout_s: float
    log_dir: Path | None
    all_ranks: bool
    command: tuple[str, ...]
