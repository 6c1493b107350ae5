"""`Job`: this process's part of a job. `current()` makes it once per process."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.collectives import Collectives, registry, strategies
from tf_sparse_ps.collectives.timeout import timeout_s
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.job.identity import Identity
from tf_sparse_ps.job.job_tables import JobTables
from tf_sparse_ps.job.node_group import NodeGroup
from tf_sparse_ps.job.table_binding import TableBinding


class Job:
    """This process's part of a job: its identity, its node's group of tables, its tables, and its collectives.

    Attributes:
      identity: The identity of this rank.
      group: The group of tables on this node.
      tables: The tables of the job's layers.
      collectives: The collectives that connect the ranks.
      timeout_s: The seconds after which a wait for another rank is an error: TFSPS_TIMEOUT_S, 600 by default.
    """

    def __init__(self, collectives: Collectives) -> None:
        """Meets the other ranks, and makes the node's group or waits for it. Every rank calls this eagerly."""
        self.collectives = collectives
        self.timeout_s = timeout_s()
        self.identity = Identity.agree(collectives)
        self.group = NodeGroup(self.identity, collectives)
        self.tables = JobTables(self.identity, self.group)
        collectives.at_exit(self.tables.lifetimes.close)  # before the group is closed
        self._step: Any = None
        _share_threads(collectives.local_size)

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.identity.rank

    @property
    def size(self) -> int:
        """The number of the job's ranks."""
        return self.identity.size

    @property
    def node(self) -> int:
        """The number of this node."""
        return self.identity.node

    @property
    def leaders(self) -> list[int]:
        """The rank of each node's leader."""
        return self.identity.leaders

    @property
    def is_leader(self) -> bool:
        """Whether this process writes the node's tables."""
        return self.identity.is_leader

    @property
    def uuid(self) -> str:
        """32 hexadecimal digits, the same on all ranks."""
        return self.identity.uuid

    @property
    def group_path(self) -> str:
        """The directory of this node's tables."""
        return self.group.path

    @property
    def step(self) -> Any:
        """The last step that this rank knows to be published, an int64 variable."""
        if self._step is None:
            self._step = _keras.local_variable(self.group.committed_step(), "int64", "tfsps_step")
        return self._step

    def create_table(
        self, config: TableConfig, *, salt: int | None = None, values: npt.NDArray[np.float32] | None = None
    ) -> TableBinding:
        """Makes the job's next table, or opens the table that an earlier run of a named job left. Every rank calls it.

        Args:
          config: The configuration of the table. Its name need not be unique. If it has no seed, the table gets the
            job's seed (`TableSeeds`).
          salt: A number that determines the initial values together with the seed; None: the next one.
          values: Initial rows, float32[key_limit, dim], instead of the initializer's values.

        Raises:
          UnsupportedError: The configuration has metadata planes, which tables of layers do not support yet.
          StateError: The table of an earlier run differs; the ranks build their layers in different orders; the job
            has the largest possible number of tables.
          NoSpaceError, AccessError: The file system refuses the table.
        """
        return self.tables.create(config, salt=salt, values=values)


def _share_threads(ranks: int) -> None:
    """Sets the numbers of threads: a rank's kernels get its share of the node's threads, the leader's update gets all.

    The other ranks wait during the leader's update.

    Args:
      ranks: The number of ranks on this node.
    """
    processors = len(os.sched_getaffinity(0))
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    with eager_ops("setting the number of threads") as _ops:
        _ops.set_threads(
            max(1, (threads or processors) // ranks), min(processors, threads * ranks) if threads else processors
        )


_current: Job | None = None
_current_lock = threading.Lock()


def made() -> Job | None:
    """Returns this process's job if it has been made, else None."""
    return _current


def current() -> Job:
    """Returns this process's job, and makes it on first use. Every rank of the job must call this.

    Raises:
      AccessError: The folder of tables belongs to another user, is a symbolic link, or cannot be written.
      NoSpaceError: The folder of tables has no space left.
      WriterLockedError: A job of this name is running.
      RuntimeError: Horovod's launcher started this process, and `hvd.init()` was not called.
      ValueError: The job was made before a tf.distribute strategy of several workers was active.
    """
    global _current
    with _current_lock:
        if _current is None:
            _current = Job(registry.current())
        elif strategies.active_strategy() is not None and (workers := registry.current()).size != _current.size:
            raise ValueError(
                "this process made its first table outside of the strategy's scope, for a job of "
                f"{_current.size} rank. In the scope, it is worker {workers.rank} of {workers.size}. A process has one "
                "job, so build every layer within `with strategy.scope():`"
            )
        return _current
