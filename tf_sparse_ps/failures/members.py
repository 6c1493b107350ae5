"""The processes of a job, and what can be seen of those of the same node.

Every rank writes who it is to the key-value store as soon as it is connected. No rank waits for another one here, so
ranks that take different paths before the first step can still be named.
"""

from __future__ import annotations

import json
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


def name_of(rank: int, member: Member | None) -> str:
    """For messages. `member` is None for a rank that has not said who it is."""
    return f"rank {rank}" if member is None else f"rank {rank} of node {member.node} (pid {member.pid})"


class Members:
    """All processes of a job, this one among them."""

    def __init__(self, collectives: Collectives, key_values: KeyValueStore) -> None:
        """Tells the other ranks who this one is. Waits for none."""
        self._rank, self._key_values = collectives.rank, key_values
        self._own = Member(os.getpid(), collectives.cross_rank, os.readlink("/proc/self/ns/pid"))
        self._found: dict[int, Member] = {self._rank: self._own}
        key_values.write(f"process.{self._rank}", json.dumps(self._own))
        # Launchers count ranks node by node. Others than these are named, and not looked at.
        first = max(0, collectives.rank - collectives.local_rank)
        last = min(collectives.size, first + collectives.local_size)
        self._maybe_near = [rank for rank in range(first, last) if rank != self._rank]
        self._near: list[int] = []

    def get(self, rank: int) -> Member | None:
        """A process; None: it has not said who it is."""
        if rank not in self._found and (said := self._key_values.read(f"process.{rank}")):
            self._found[rank] = Member(*json.loads(said))
        return self._found.get(rank)

    def find_near(self) -> None:
        """Looks for processes of this node that have come since the last call."""
        for rank in tuple(self._maybe_near):
            if (member := self.get(rank)) is not None:
                self._maybe_near.remove(rank)
                if (member.node, member.pids) == (self._own.node, self._own.pids):
                    self._near.append(rank)

    def states(self) -> dict[int, str]:
        """What the other processes of this node are, by rank, in words that follow "is"."""
        return {rank: _table.process_state(self._found[rank].pid) for rank in self._near}

    def leave(self) -> None:
        """Says that the end of this process is none to report."""
        self._key_values.write(f"left.{self._rank}", "yes")

    def has_left(self, rank: int) -> bool:
        """Whether a process has said so."""
        return self._key_values.read(f"left.{rank}") != ""

    def dead(self) -> int | None:
        """A rank of this node whose process is gone, and has not left; None: none."""
        for rank, state in self.states().items():
            if state == "gone":
                if not self.has_left(rank):
                    return rank
                self._near.remove(rank)
        return None

    def stopped(self) -> int | None:
        """A rank of this node whose process is stopped."""
        return next((rank for rank, state in self.states().items() if state.startswith("stopped")), None)
