"""Collective operations of all ranks: one interface and its implementations.

No module outside this package names Horovod.

- `interface`: `Collectives`; `registry`: which collectives this process uses; `all_or_none`: joint success or failure.
- `horovod`, `horovod_setup`: Horovod. `local`: one process.
- `runtime`: TensorFlow's collectives. A strategy (`tf_distribute`) or this library (`tensorflow`, `meeting`,
  `cluster_config`) connects their workers. `operation_timeout` ends operations that wait too long.
- `processes`: the code that Horovod's and TensorFlow's collectives share; `eager_operations`: the operations outside of
  graphs that a rank waits for.
- `launchers`, `strategies`: which launcher started this process; which tf.distribute strategy is active.
- `key_values`, `key_value_server`, `signed_requests`: values that ranks leave for each other; `exit_report`: why a rank
  ends; `timeout`: TFSPS_TIMEOUT_S.
"""

from tf_sparse_ps.collectives.interface import Collectives
from tf_sparse_ps.collectives.registry import current, resolve
from tf_sparse_ps.collectives.strategies import active_strategy, foreign_wrapper
from tf_sparse_ps.errors import CollectivesError

__all__ = ["Collectives", "CollectivesError", "active_strategy", "current", "foreign_wrapper", "resolve"]
