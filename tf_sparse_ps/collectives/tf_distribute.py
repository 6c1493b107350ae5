"""Collectives of the workers of a tf.distribute strategy (tested with TensorFlow 2.15 and 2.21, workers on CPUs).

`MultiWorkerMirroredStrategy` connects the workers and starts TensorFlow's collective runtime. Each worker is a rank. It
merges the gradients of its replicas before it sends them (`training/replicas.py`). Under `MirroredStrategy` the job has
one rank, which sends nothing.
"""

from __future__ import annotations

import atexit
from typing import Any

import tensorflow as tf

from tf_sparse_ps.collectives.runtime import ALL_RANKS, RuntimeCollectives


class TfDistributeCollectives(RuntimeCollectives):
    """The collectives of a MultiWorkerMirroredStrategy's workers, or of the one process of another strategy.

    `make` returns them.

    Attributes:
      cluster: The addresses of the workers by job name; empty for strategies of one process.
    """

    kind = "tf.distribute"
    cluster: dict[str, list[str]]

    def check_strategy(self, strategy: Any) -> None:
        """Raises ValueError if a strategy has other workers, or several workers with several replicas each."""
        _workers(strategy)
        if (cluster := _cluster(strategy)) != self.cluster:
            raise ValueError(
                f"this process already trains with {_describe(self.cluster)}, and a process can have only one cluster. "
                f"Use one strategy in the whole program. Received: a strategy with {_describe(cluster)}"
            )


def make(strategy: Any) -> TfDistributeCollectives:
    """Returns the collectives of a strategy's workers. Every worker calls this.

    Raises:
      ValueError: The strategy has several workers, with several replicas each.
      AccessError, NoSpaceError: The folder of tables cannot be used.
    """
    rank, size = _workers(strategy)
    device = strategy.extended.worker_devices[0] if size > 1 else "/CPU:0"
    device = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
    collectives = TfDistributeCollectives(device, rank, size, ALL_RANKS, {})
    collectives.cluster = _cluster(strategy)
    collectives.in_cluster = bool(collectives.cluster)
    collectives.find_nodes()
    atexit.register(collectives.end)
    return collectives


def _cluster(strategy: Any) -> dict[str, list[str]]:
    """Returns the addresses of a strategy's workers by job name; empty for strategies of one process."""
    resolver = strategy.cluster_resolver
    return {} if resolver is None else dict(resolver.cluster_spec().as_dict())


def _describe(cluster: dict[str, list[str]]) -> str:
    return f"the cluster {cluster}" if cluster else "no cluster"


def _workers(strategy: Any) -> tuple[int, int]:
    """Returns the number of this process among the strategy's workers, with the chief first, and their number."""
    cluster = _cluster(strategy)
    kind, number = (strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id) if cluster else (None, 0)
    sizes = {job: len(cluster.get(job, [])) for job in ("chief", "worker")}
    if kind not in sizes:  # a strategy of one process, or an evaluator, which is alone
        return 0, 1
    size, replicas = sum(sizes.values()), strategy.num_replicas_in_sync
    if size > 1 and replicas != size:
        raise ValueError(
            "each worker of a MultiWorkerMirroredStrategy must have one replica, so that each rank has one gradient. "
            f"Start one worker per device. Received: {replicas} replicas in {size} workers"
        )
    return int(number) + (sizes["chief"] if kind == "worker" else 0), size
