"""Operations of all ranks: one interface and its implementations. Nothing outside this package names Horovod.

- `interface`: `Collectives`; `registry`: which collectives this process uses; `all_or_none`: joint success or failure.
- `horovod`, `horovod_setup`: Horovod. `local`: one process.
- `runtime`: TensorFlow's collectives, of workers that a strategy (`tf_distribute`) or this library (`tensorflow`,
  `meeting`, `cluster_config`) has connected. `operation_timeout`: ends operations that wait in vain.
- `processes`: what Horovod and TensorFlow's collectives share; `eager_operations`: what a rank awaits outside graphs.
- `launchers`, `strategies`: who started this process; which tf.distribute strategy is active.
- `key_values`, `key_value_server`, `signed_requests`: values that ranks leave for each other; `exit_report`: why a rank
  ends; `timeout`: TFSPS_TIMEOUT_S.
"""

from tf_sparse_ps.collectives.interface import Collectives
from tf_sparse_ps.collectives.registry import current, resolve
from tf_sparse_ps.collectives.strategies import active_strategy, foreign_wrapper
from tf_sparse_ps.errors import CollectivesError

__all__ = ["Collectives", "CollectivesError", "active_strategy", "current", "foreign_wrapper", "resolve"]
