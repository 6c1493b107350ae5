"""`NodeExchange`: where the ranks of a node merge gradients in shared memory, and whom they meet on other nodes."""

from __future__ import annotations

import weakref
from typing import Any

from tf_sparse_ps._compat import _keras
from tf_sparse_ps._ops.eager import eager_ops
from tf_sparse_ps.collectives import Collectives, horovod_setup
from tf_sparse_ps.job.job import Job

# What merging gradients may take of a rank's memory beside the gradients themselves, before and after; more on many
# nodes, where a round must still be worth its messages.
EXCHANGE_BUDGET_BYTES = 64 << 20
_LEAST_PIECE_BYTES = 256 << 10
# Of that: Horovod's buffer for several tensors at once, and the order of a rank's rows, 4 bytes each.
_FUSION_BYTES, _ORDER_BYTES = horovod_setup.FUSION_BYTES, 8 << 20


def exchange_window(nodes: int, mergers: int, owners: int = 1) -> int:
    """Shared memory of a node for one round of gradients, in bytes; up to as much again for what is merged from them.

    Args:
      nodes: Of the job.
      mergers: Ranks of a node that merge, each with its own buffers.
      owners: Nodes that have a part of the tables each, all of the job's; 1: every node receives what all have sent.
    """
    # In pieces of a round's share of one merger: 2 contributed and merged; of several nodes 2 packed, and of every node
    # 2 received, 1 unpacked and 1 merged, of owners an equal part of each; a quarter more for rows that are longer as a
    # node's than as a rank's, and for hash tables.
    pieces = 2 * owners if nodes == 1 else 4 * owners + 4 * nodes
    piece = (EXCHANGE_BUDGET_BYTES - _FUSION_BYTES - _ORDER_BYTES) * 4 * owners // (5 * pieces)
    return mergers * max(piece, _LEAST_PIECE_BYTES)


class NodeExchange:
    """The exchange of a job's ranks on this node; one per job and process, from `of`.

    Attributes:
      mergers: How many ranks of every node merge gradients: as many as the smallest node has.
      joined_by_all: All ranks of the job have joined, and met those of other nodes: who has seen to that says so.
    """

    def __init__(self, job: Job) -> None:
        """Has not joined yet; `job`: of this process."""
        nodes = job.identity.nodes
        self._members = [[r for r in range(job.size) if nodes[r] == node] for node in range(len(job.leaders))]
        self.mergers = min(len(ranks) for ranks in self._members)
        self._group, self._collectives, self._rank = job.group, job.collectives, job.rank
        self._joined = self.joined_by_all = False
        self._cross_node_groups: list[Collectives | None] = []
        self._pulls: Any = None

    @property
    def pulls(self) -> Any:
        """int64 variable of this process, which every pull of rows reads first and advances last.

        So pulls are in the order of the program, in functions and loops too, where TensorFlow orders by variable.
        """
        if self._pulls is None:
            self._pulls = _keras.local_variable(0, "int64", "tsps.pulls")
        return self._pulls

    def window(self, owners: int) -> int:
        """Bytes of shared memory of this node for one round of gradients: see `exchange_window`."""
        return exchange_window(len(self._members), self.mergers, owners)

    def join(self) -> None:
        """Makes this process one that the other ranks of its node see, and can merge gradients with, once.

        All ranks of a node must have joined before one of them looks at the others.
        """
        if self._joined:
            return
        own, group = self._collectives, self._group
        with eager_ops(f"joining the exchange of {group.path}") as _ops:
            _ops.join_exchange(
                group.path,
                group.exchange_path,
                own.local_rank,
                own.local_size,
                self._rank,
                self.mergers,
                self.window(len(self._members)),  # the most of a round; rings that need smaller ones make more rounds
            )
        self._joined = True

    def cross_node_group(self) -> Collectives | None:
        """The collectives among the ranks with this one's local rank on all nodes. Every rank calls it; made once.

        Returns:
          None on a rank that does not merge: not every node has a rank of its number.

        Raises:
          RuntimeError: See `Collectives.subset`.
        """
        if not self._cross_node_groups:
            self._cross_node_groups = [
                self._collectives.subset([ranks[local_rank] for ranks in self._members])
                for local_rank in range(self.mergers)
            ]
        found = [one for one in self._cross_node_groups if one is not None]
        return found[0] if found else None


_of: weakref.WeakKeyDictionary[Job, NodeExchange] = weakref.WeakKeyDictionary()


def of(job: Job) -> NodeExchange:
    """The exchange of a job, made on first use."""
    if job not in _of:
        _of[job] = NodeExchange(job)
    return _of[job]
