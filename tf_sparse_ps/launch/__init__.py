"""Starts the ranks of a job, with one launcher on each machine. Imports no TensorFlow.

- `options`: what the command line chooses. `horovod_check`: whether the ranks can use Horovod.
- `meeting`, `key_values`, `launch_secret`: the launchers of a job meet in a key-value store that node 0's launcher
  serves. `node_link`: what they exchange while the ranks run.
- `supervision`: starts the ranks of this machine, and ends them when a rank of any machine fails.
- `ranks`, `rank_start`, `environment`: the processes of the ranks and their environment variables.
- `output`, `start_up_lines`: which output of the ranks is shown and logged. `outcome`: why a job ended.
"""

from tf_sparse_ps.launch import horovod_check, supervision
from tf_sparse_ps.launch.options import Options

__all__ = ["Options", "run"]


def run(options: Options) -> int:
    """Runs the ranks of this machine until they end, and returns the launcher's exit status.

    Raises:
      LaunchError: The job cannot start. Its `status` is the exit status.
    """
    return supervision.run(horovod_check.settle(options))
