"""`NodeExchange`: the shared memory in which ranks of a node merge gradients, and the group of ranks across nodes."""

from __future__ import annotations

import weakref
from typing import Any

from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.collectives import Collectives, horovod_setup
from tf_sparse_ps.job.job import Job

# The memory per rank for merging gradients, in addition to the gradients themselves before and after. With many nodes
# it may be more, because a round must be large enough for efficient messages.
EXCHANGE_BUDGET_BYTES = 64 << 20
_LEAST_PIECE_BYTES = 256 << 10
# Parts of that memory: Horovod's buffer for several tensors, and the order of a rank's rows, 4 bytes per row.
_FUSION_BYTES, _ORDER_BYTES = horovod_setup.FUSION_BYTES, 8 << 20


def exchange_window(nodes: int, mergers: int, owners: int = 1) -> int:
    """Returns the shared memory of a node for the gradients of one round, in bytes. Merged gradients may need as much.

    Args:
      nodes: The number of nodes of the job.
      mergers: The number of ranks of a node that merge. Each of them has buffers.
      owners: The number of nodes among which each table is divided, if tables are sharded. 1: every node receives all
        gradients.
    """
    # The unit is a piece, one merger's share of a round. On one node a merger needs 2 pieces: contributed and merged
    # gradients. On several nodes it needs 2 packed pieces more, and per node 2 received, 1 unpacked and 1 merged piece,
    # of which an owner of a sharded table receives its part only. A quarter is added for rows that are longer after
    # merging on a node, and for hash tables.
    pieces = 2 * owners if nodes == 1 else 4 * owners + 4 * nodes
    piece = (EXCHANGE_BUDGET_BYTES - _FUSION_BYTES - _ORDER_BYTES) * 4 * owners // (5 * pieces)
    return mergers * max(piece, _LEAST_PIECE_BYTES)


class NodeExchange:
    """The exchange of a job's ranks on this node. `of` returns the one of a job in this process.

    Attributes:
      mergers: The number of ranks of each node that merge gradients: the number of ranks of the smallest node.
      joined_by_all: Whether all ranks of the job have joined and have connected across nodes. The caller of `join` and
        `cross_node_group` on all ranks sets it.
    """

    def __init__(self, job: Job) -> None:
        """Makes the exchange of this process's job, without joining it."""
        nodes = job.identity.nodes
        self._members = [[r for r in range(job.size) if nodes[r] == node] for node in range(len(job.leaders))]
        self.mergers = min(len(ranks) for ranks in self._members)
        self._group, self._collectives, self._rank = job.group, job.collectives, job.rank
        self._joined = self.joined_by_all = False
        self._cross_node_groups: list[Collectives | None] = []
        self._pulls: Any = None

    @property
    def pulls(self) -> Any:
        """An int64 variable of this process. Every pull of rows reads it first and increments it last.

        It keeps pulls in the order of the program, also in functions and loops, where TensorFlow orders ops by their
        variables.
        """
        if self._pulls is None:
            self._pulls = _keras.local_variable(0, "int64", "tsps.pulls")
        return self._pulls

    def window(self, owners: int) -> int:
        """Returns the shared memory of this node for one round of gradients, in bytes. See `exchange_window`."""
        return exchange_window(len(self._members), self.mergers, owners)

    def join(self) -> None:
        """Joins the exchange, once, so that the other ranks of the node can merge gradients with this rank.

        All ranks of a node must have joined before any of them merges.
        """
        if self._joined:
            return
        collectives, group = self._collectives, self._group
        with eager_ops(f"joining the exchange of {group.path}") as _ops:
            _ops.join_exchange(
                group.path,
                group.exchange_path,
                collectives.local_rank,
                collectives.local_size,
                self._rank,
                self.mergers,
                self.window(len(self._members)),  # the largest window; reducers with a smaller one make more rounds
            )
        self._joined = True

    def cross_node_group(self) -> Collectives | None:
        """Returns the collectives among the ranks with this rank's local rank on all nodes. Every rank calls it.

        Returns:
          The collectives, made on the first call. None on a rank that does not merge, because some node has no rank
          with this local rank.

        Raises:
          RuntimeError: See `Collectives.subset`.
        """
        if not self._cross_node_groups:
            self._cross_node_groups = [
                self._collectives.subset([ranks[local_rank] for ranks in self._members])
                for local_rank in range(self.mergers)
            ]
        return next((group for group in self._cross_node_groups if group is not None), None)


_of: weakref.WeakKeyDictionary[Job, NodeExchange] = weakref.WeakKeyDictionary()


def of(job: Job) -> NodeExchange:
    """Returns the exchange of a job. The first call makes it."""
    if job not in _of:
        _of[job] = NodeExchange(job)
    return _of[job]
