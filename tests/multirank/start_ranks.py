"""Starts the ranks of a job on this machine as horovodrun does, with Horovod's own launcher of Gloo.

What horovodrun does before that is left out: it imports TensorFlow, and looks for network interfaces and hosts. A rank
that fails ends the others, output has the rank and stream before each line, and the status is 0 if all ranks succeeded.

    python start_ranks.py HOSTS RANKS COMMAND...
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Returns when all ranks have ended.

    Raises:
      RuntimeError: A rank failed; names it and its exit status.
    """
    # Here, because each rank has a process that watches it, which imports this module.
    from horovod.runner.common.util.settings import Settings
    from horovod.runner.gloo_run import gloo_run

    hosts, ranks, *command = sys.argv[1:]
    gloo_run(Settings(hosts=hosts, num_proc=int(ranks)), ["lo"], dict(os.environ), "127.0.0.1", command)


if __name__ == "__main__":
    main()
