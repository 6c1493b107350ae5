"""Collectives of processes that TF_CONFIG names, connected by TensorFlow itself: no Horovod, and no strategy around.

`tf-sparse-ps run` sets TF_CONFIG, and so do Kubeflow and others. Checked: TensorFlow 2.15 and 2.21, on CPUs.

TensorFlow's server and its collective runtime are started by making a `MultiWorkerMirroredStrategy`, the public way to
do that. Its scope is never entered: Keras 3, which cannot train in it, sees nothing of it.
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

# What TensorFlow itself may take to connect processes that are all there, on a machine with much else to do.
_CONNECTING_S = 15.0


class TensorFlowCollectives(RuntimeCollectives):
    """The workers of TF_CONFIG. See `make`."""

    kind = "tensorflow"
    in_cluster = True
    grace_s = 10.0
    _strategy: Any = None  # keeps TensorFlow's server
    _server: KeyValueServer | None = None  # keeps the job's key-value store, on rank 0 of a job without a launcher


def make() -> TensorFlowCollectives:
    """Connects the workers of TF_CONFIG. Each of them calls it, before TensorFlow's first operation.

    Raises:
      ValueError: TF_CONFIG names no workers, or is not what TensorFlow describes.
      RuntimeError: TensorFlow has run operations already.
      RankLost: Workers that did not come, or were told of another cluster, with which.
      CollectivesError: The port that TF_CONFIG gives this process is taken.
      AccessError, NoSpaceError: From the folder of tables.
    """
    cluster = cluster_config.find()
    if cluster is None:
        raise ValueError(
            f"collectives='tensorflow' is for processes that {VARIABLE} names: start them with `tf-sparse-ps run -np N "
            f"python train.py`, or set it in each. Received: {VARIABLE}={os.environ.get(VARIABLE, '')!r}"
        )
    if _tensorflow.has_begun():
        raise RuntimeError(
            "TensorFlow has run operations already, and connects processes only before the first one: call "
            "tsps.init() at the top of the program, before any tensor, layer, seed or dataset is made"
        )
    store, server = meeting.meet(cluster, timeout_s())
    # TensorFlow would try for an hour, and holds Python's lock meanwhile: no thread of Python's could end that.
    seconds = timeout_s() + _CONNECTING_S
    deadline = _table.ExitDeadline(
        seconds,
        f"tf_sparse_ps: rank {cluster.rank} of {cluster.size} ends: all ranks were there, and then TensorFlow did not "
        f"connect them within {seconds:g} s. One has ended meanwhile, or cannot be reached at its address: "
        f"{', '.join(cluster.addresses)}",
    )
    try:
        strategy = _strategy() if cluster.size > 1 else None
        device = "/CPU:0" if strategy is None else strategy.extended.worker_devices[0]
        device = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
        made = TensorFlowCollectives(device, cluster.rank, cluster.size, ALL_RANKS, {})
        made._strategy, made._server, made.key_values = strategy, server, store
        made.find_nodes()
    finally:
        deadline.cancel()
    atexit.register(made.end)
    return made


def _strategy() -> Any:
    """Starts TensorFlow's server and its collective runtime."""
    terminate = signal.getsignal(signal.SIGTERM)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if threading.current_thread() is threading.main_thread() and terminate is not None:
        # TensorFlow has taken the signal for a notice of preemption, and goes on.
        signal.signal(signal.SIGTERM, terminate)
    return strategy
