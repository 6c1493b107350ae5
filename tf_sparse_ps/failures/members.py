"""`Members`: the processes of a job, and the states of those on the same node.

Every rank writes its process and node to the key-value store as soon as it is connected. No rank waits for another one
here, so that ranks that take different paths before the first step can be named, too.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from tf_sparse_ps import _table
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.key_values import KeyValueStore


class Member(NamedTuple):
    """The process of a rank.

    Attributes:
      pid: The process id.
      node: The number of its node.
      pids: The pid namespace in which `pid` is valid. In other namespaces, it may name another process.
    """

    pid: int
    node: int
    pids: str


def name_of(rank: int, member: Member | None) -> str:
    """Returns the name of a rank for messages. `member` is None if the rank has not registered."""
    return f"rank {rank}" if member is None else f"rank {rank} of node {member.node} (pid {member.pid})"


class Members:
    """All processes of a job, including this one."""

    def __init__(self, collectives: Collectives, key_values: KeyValueStore) -> None:
        """Registers this process, without waiting for others."""
        self._rank, self._key_values = collectives.rank, key_values
        self._own_member = Member(os.getpid(), collectives.cross_rank, os.readlink("/proc/self/ns/pid"))
        self._members: dict[int, Member] = {self._rank: self._own_member}
        key_values.write(f"process.{self._rank}", json.dumps(self._own_member))
        # Launchers number ranks node by node. Ranks outside of this range are named, but their processes not inspected.
        first = max(0, collectives.rank - collectives.local_rank)
        last = min(collectives.size, first + collectives.local_size)
        self._maybe_near = [rank for rank in range(first, last) if rank != self._rank]
        self._near: list[int] = []

    def get(self, rank: int) -> Member | None:
        """Returns the process of a rank; None if it has not registered."""
        if rank not in self._members and (text := self._key_values.read(f"process.{rank}")):
            self._members[rank] = Member(*json.loads(text))
        return self._members.get(rank)

    def find_near(self) -> None:
        """Looks for processes of this node that have registered since the last call."""
        for rank in tuple(self._maybe_near):
            if (member := self.get(rank)) is not None:
                self._maybe_near.remove(rank)
                if (member.node, member.pids) == (self._own_member.node, self._own_member.pids):
                    self._near.append(rank)

    def states(self) -> dict[int, str]:
        """Returns the states of the other processes of this node by rank, in words that follow "is"."""
        return {rank: _table.process_state(self._members[rank].pid) for rank in self._near}

    def leave(self) -> None:
        """Records that this process ends without an error, so that its end is not reported."""
        self._key_values.write(f"left.{self._rank}", "yes")

    def has_left(self, rank: int) -> bool:
        """Returns whether the process of a rank has called `leave`."""
        return self._key_values.read(f"left.{rank}") != ""

    def dead(self) -> int | None:
        """Returns a rank of this node whose process has ended without calling `leave`, or None."""
        for rank, state in self.states().items():
            if state == "gone":
                if not self.has_left(rank):
                    return rank
                self._near.remove(rank)
        return None

    def stopped(self) -> int | None:
        """Returns a rank of this node whose process is stopped, or None."""
        return next((rank for rank, state in self.states().items() if state.startswith("stopped")), None)
