"""Collectives of the processes that TF_CONFIG names, connected by TensorFlow without Horovod and without a strategy.

`tf-sparse-ps run` sets TF_CONFIG, and so do Kubeflow and others. Tested with TensorFlow 2.15 and 2.21, on CPUs.

This module makes a `MultiWorkerMirroredStrategy`, because that is the public way to start TensorFlow's server and its
collective runtime. It never enters the strategy's scope, because Keras 3 cannot train in it.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _table
from tf_sparse_ps._compat import _tensorflow
from tf_sparse_ps.collectives import cluster_config, meeting
from tf_sparse_ps.collectives.cluster_config import VARIABLE
from tf_sparse_ps.collectives.key_value_server import KeyValueServer
from tf_sparse_ps.collectives.runtime import ALL_RANKS, RuntimeCollectives
from tf_sparse_ps.collectives.timeout import timeout_s

# The time that TensorFlow may take to connect running processes on a busy machine.
_CONNECTING_S = 15.0
# TensorFlow's heartbeats end a job this long after TFSPS_TIMEOUT_S, and name no rank. The liveness check comes first.
_HEARTBEAT_GRACE_S = 30.0


class TensorFlowCollectives(RuntimeCollectives):
    """The collectives of TF_CONFIG's workers. `make` returns them."""

    kind = "tensorflow"
    in_cluster = True
    grace_s = 10.0
    _strategy: Any = None  # keeps TensorFlow's server
    _server: KeyValueServer | None = None  # keeps the job's key-value store, on rank 0 of a job without a launcher


def make() -> TensorFlowCollectives:
    """Connects the workers of TF_CONFIG. Each of them calls this, before TensorFlow's first operation.

    Raises:
      ValueError: TF_CONFIG names no workers, or does not have the form that TensorFlow documents.
      RuntimeError: TensorFlow has already run operations.
      RankLost: Workers did not connect in time, or have another TF_CONFIG. The message names them.
      CollectivesError: The port that TF_CONFIG gives this process is in use.
      AccessError, NoSpaceError: The folder of tables cannot be used.
    """
    cluster = cluster_config.find()
    if cluster is None:
        raise ValueError(
            f"collectives='tensorflow' needs {VARIABLE}, which must name all ranks, but it names no worker for this "
            "process. Start the ranks with `tf-sparse-ps run -np N python train.py`, or set the variable in each of "
            f"them. Received: {VARIABLE}={os.environ.get(VARIABLE, '')!r}"
        )
    if _tensorflow.has_begun():
        raise RuntimeError(
            "TensorFlow has already run operations. It can connect processes only before its first operation. Call "
            "tsps.init() at the top of the program, before you make a tensor, layer, seed or dataset"
        )
    store, server = meeting.meet(cluster, timeout_s())
    # TensorFlow would try for an hour. Meanwhile it holds Python's lock, so that no Python thread could end the wait.
    seconds = timeout_s() + _CONNECTING_S
    deadline = _table.ExitDeadline(
        seconds,
        f"tf_sparse_ps: rank {cluster.rank} of {cluster.size} ends. All ranks had started, but then TensorFlow did not "
        f"connect them within {seconds:g} s. A rank has ended meanwhile, or cannot be reached at its address. Look at "
        f"the output of the other ranks, and check the addresses: {', '.join(cluster.addresses)}",
    )
    try:
        strategy = _strategy() if cluster.size > 1 else None
        device = "/CPU:0" if strategy is None else strategy.extended.worker_devices[0]
        device = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
        collectives = TensorFlowCollectives(device, cluster.rank, cluster.size, ALL_RANKS, {})
        collectives._strategy, collectives._server, collectives.key_values = strategy, server, store
        collectives.find_nodes()
    finally:
        deadline.cancel()
    atexit.register(collectives.end)
    return collectives


def _strategy() -> Any:
    """Starts TensorFlow's server and its collective runtime. Returns the strategy that keeps them."""
    terminate = signal.getsignal(signal.SIGTERM)
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    _tensorflow.set_heartbeat_timeout(cluster, timeout_s() + _HEARTBEAT_GRACE_S)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if threading.current_thread() is threading.main_thread() and terminate is not None:
        # TensorFlow treats SIGTERM as a notice of preemption and continues. This restores the handler from before.
        signal.signal(signal.SIGTERM, terminate)
    return strategy
