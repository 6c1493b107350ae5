"""The processes of a job, and what can be seen of those of the same node."""

from __future__ import annotations

import os
from typing import NamedTuple

from tf_sparse_ps import _table
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.key_values import KeyValueStore


class Member(NamedTuple):
    """A process.

    Attributes:
      pid: In its `pids`.
      node: It is on.
      pids: Its namespace of process ids: elsewhere the pid is another process, or none.
    """

    pid: int
    node: int
    pids: str


def name_of(rank: int, member: Member) -> str:
    """For messages."""
    return f"rank {rank} of node {member.node} (pid {member.pid})"


class Members:
    """All processes of a job, this one among them.

    Attributes:
      all: By rank.
    """

    def __init__(self, collectives: Collectives, key_values: KeyValueStore) -> None:
        """All ranks make theirs together."""
        self._rank, self._key_values = collectives.rank, key_values
        own = Member(os.getpid(), collectives.cross_rank, os.readlink("/proc/self/ns/pid"))
        self.all = [Member(*one) for one in collectives.allgather_object(tuple(own), "tsps.members")]
        self._near = [
            r for r, one in enumerate(self.all) if r != self._rank and (one.node, one.pids) == (own.node, own.pids)
        ]

    def states(self) -> dict[int, str]:
        """What the other processes of this node are, by rank, in words that follow "is"."""
        return {r: _table.process_state(self.all[r].pid) for r in self._near}

    def leave(self) -> None:
        """Says that the end of this process is none to report."""
        self._key_values.write(f"left.{self._rank}", "yes")

    def dead(self) -> int | None:
        """A rank of this node whose process is gone, and has not left; None: none."""
        for rank, state in self.states().items():
            if state == "gone":
                if not self._key_values.read(f"left.{rank}"):
                    return rank
                self._near.remove(rank)
        return None

    def stopped(self) -> int | None:
        """A rank of this node whose process is stopped."""
        return next((rank for rank, state in self.states().items() if state.startswith("stopped")), None)
