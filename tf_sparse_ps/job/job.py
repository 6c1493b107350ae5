"""`Job`: this process's part of a job. `current()` makes it, once per process."""

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
    """Joins what a rank knows: who it is, its node's group, its tables, and how to talk to the other ranks.

    Attributes:
      identity: Who this process is.
      group: The group of tables on this node.
      tables: Of the job's layers.
      collectives: How the ranks talk to each other.
      timeout_s: How long to wait for another rank before that is an error: TFSPS_TIMEOUT_S, 600 by default.
    """

    def __init__(self, collectives: Collectives) -> None:
        """Meets the other ranks, and makes the node's group or waits for it. Eager; every rank calls it."""
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
        """This process among all of the job's."""
        return self.identity.rank

    @property
    def size(self) -> int:
        """The number of the job's ranks."""
        return self.identity.size

    @property
    def node(self) -> int:
        """This machine among the job's, in the order of their ranks."""
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
        """int64 variable: the last step that this rank knows to be published."""
        if self._step is None:
            self._step = _keras.local_variable(self.group.committed_step(), "int64", "tfsps_step")
        return self._step

    def create_table(
        self, config: TableConfig, *, salt: int | None = None, values: npt.NDArray[np.float32] | None = None
    ) -> TableBinding:
        """Makes the job's next table, or finds the one that a named job left. Every rank calls it.

        Args:
          config: What the table is. Its name need not be unique. Without a seed it gets the job's (`TableSeeds`).
          salt: Together with the seed determines the initial values; None: the next one.
          values: float32[key_limit, dim] to start with instead of the initializer's values.

        Raises:
          UnsupportedError: It has metadata planes, which tables of layers do not have yet.
          StateError: A named job's table is something else; the ranks build their layers in different orders; the job
            has as many tables as it can have.
          NoSpaceError, AccessError: From the file system.
        """
        return self.tables.create(config, salt=salt, values=values)


def _share_threads(ranks: int) -> None:
    """Gives a rank's kernels its share of the node's threads, and the leader's update all: the others wait for it."""
    processors = len(os.sched_getaffinity(0))
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    with eager_ops("setting the number of threads") as _ops:
        _ops.set_threads(
            max(1, (threads or processors) // ranks), min(processors, threads * ranks) if threads else processors
        )


_current: Job | None = None
_current_lock = threading.Lock()


def made() -> Job | None:
    """This process's job, if there is one already."""
    return _current


def current() -> Job:
    """This process's job, made on first use. In a job of several ranks every rank must get here.

    Raises:
      AccessError: The folder of tables is another user's, a symbolic link, or cannot be written.
      NoSpaceError: There is no room in it.
      WriterLockedError: A job of this name is running.
      RuntimeError: Horovod's launcher started this process and `hvd.init()` was not called.
      ValueError: The job was made before a tf.distribute strategy of several workers was active.
    """
    global _current
    with _current_lock:
        if _current is None:
            _current = Job(registry.current())
        elif strategies.active_strategy() is not None and (found := registry.current()).size != _current.size:
            raise ValueError(
                f"this process's first table was made outside of the strategy's scope, for a job of "
                f"{_current.size} rank; here it is worker {found.rank} of {found.size}. Build every layer "
                "within `with strategy.scope():`"
            )
        return _current
