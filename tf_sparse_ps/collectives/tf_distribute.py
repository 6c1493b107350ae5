"""Collectives of a tf.distribute strategy's workers (checked: TensorFlow 2.15 and 2.21, workers on CPUs).

`MultiWorkerMirroredStrategy` connects the workers and starts TensorFlow's collective runtime. A rank is a worker;
replicas within a worker are merged before anything is sent (`training/replicas.py`). Under `MirroredStrategy` there is
one rank, and nothing to send.
"""

from __future__ import annotations

import atexit
from typing import Any

import tensorflow as tf

from tf_sparse_ps.collectives.runtime import ALL_RANKS, RuntimeCollectives


class TfDistributeCollectives(RuntimeCollectives):
    """The workers of a MultiWorkerMirroredStrategy, or the one process of another strategy. See `make`.

    Attributes:
      cluster: The workers by job; none for strategies of one process.
    """

    kind = "tf.distribute"
    cluster: dict[str, list[str]]

    def check_strategy(self, strategy: Any) -> None:
        """Raises ValueError if a strategy has other workers than these, or several replicas in each of several."""
        _workers(strategy)
        if (cluster := _cluster(strategy)) != self.cluster:
            raise ValueError(
                f"this process trains with the workers {self.cluster or 'of no cluster'} already; a process has one "
                f"cluster. Received: a strategy with {cluster or 'none'}"
            )


def make(strategy: Any) -> TfDistributeCollectives:
    """The collectives of a strategy's workers. Every worker calls it.

    Raises:
      ValueError: Workers with several replicas each.
      AccessError, NoSpaceError: From the folder of tables.
    """
    rank, size = _workers(strategy)
    device = strategy.extended.worker_devices[0] if size > 1 else "/CPU:0"
    device = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
    made = TfDistributeCollectives(device, rank, size, ALL_RANKS, {})
    made.cluster = _cluster(strategy)
    made.in_cluster = bool(made.cluster)
    made.find_nodes()
    atexit.register(made.end)
    return made


def _cluster(strategy: Any) -> dict[str, list[str]]:
    """The workers of a strategy by job; none for strategies of one process."""
    resolver = strategy.cluster_resolver
    return {} if resolver is None else dict(resolver.cluster_spec().as_dict())


def _workers(strategy: Any) -> tuple[int, int]:
    """This process's number among the strategy's workers, the chief first, and how many there are."""
    cluster = _cluster(strategy)
    kind, number = (strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id) if cluster else (None, 0)
    sizes = {job: len(cluster.get(job, [])) for job in ("chief", "worker")}
    if kind not in sizes:  # one process; or an evaluator, which is alone
        return 0, 1
    size, replicas = sum(sizes.values()), strategy.num_replicas_in_sync
    if size > 1 and replicas != size:
        raise ValueError(
            f"each worker of a MultiWorkerMirroredStrategy must have one device here, and so one replica. Received: "
            f"{replicas} replicas in {size} workers. Start one worker per device"
        )
    return int(number) + (sizes["chief"] if kind == "worker" else 0), size
