"""`Identity`: who a rank is in its job. All ranks find it out together, once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.node import node_discovery


@dataclasses.dataclass(frozen=True)
class Identity:
    """A rank's job, and its part of it.

    Attributes:
      name: TFSPS_JOB; None: the job is unnamed.
      uuid: Of the job: 32 hexadecimal digits, the same on all ranks, and in every run of a named job.
      run: 16 hexadecimal digits that tell this run of a named job from others.
      keras_seed: Rank 0's, if one was set and counts.
      life: Of a group that this run makes: tells it from those of earlier runs. 1 to 2**62.
      index_seed: Likewise: from it follow the seeds of its tables' indexes, which nobody can guess.
      rank, size: This process among all of the job's.
      nodes: The node of each rank. Nodes are counted in the order of their first ranks.
    """

    name: str | None
    uuid: str
    run: str
    keras_seed: str | None
    life: int
    index_seed: int
    rank: int
    size: int
    nodes: tuple[int, ...]

    @property
    def node(self) -> int:
        """This rank's node."""
        return self.nodes[self.rank]

    @property
    def run_id(self) -> int:
        """`run` as the groups of the nodes note it, 1 to 2**63 - 1."""
        return int(self.run, 16) >> 1 or 1

    @property
    def leaders(self) -> list[int]:
        """The rank of each node's leader."""
        return [self.nodes.index(node) for node in range(max(self.nodes) + 1)]

    @property
    def is_leader(self) -> bool:
        """Whether this process writes its node's tables."""
        return self.leaders[self.node] == self.rank

    @classmethod
    def agree(cls, collectives: Collectives) -> Identity:
        """Finds it out with the other ranks. Every rank calls it.

        Raises:
          ValueError: TFSPS_JOB is no name, or differs between ranks; ranks cannot tell which nodes they share.
        """
        own_name = os.environ.get("TFSPS_JOB") or None
        if own_name is not None and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", own_name):
            raise ValueError(
                "TFSPS_JOB must be 1 to 100 letters, digits, '.', '_' or '-', not starting with '.'. "
                f"Received: {own_name!r}"
            )
        own_uuid = digest("job", own_name) if own_name else secrets.token_hex(16)
        own_seed = None if own_name else _keras.random_seed()[0]
        own = (own_name, own_uuid, secrets.token_hex(8), own_seed, secrets.randbits(62) + 1, secrets.randbits(63))
        name, uuid, run, seed, life, index_seed = collectives.broadcast_object(own, 0, "tfsps_job")
        if name != own_name:
            raise ValueError(
                f"TFSPS_JOB differs between ranks: {name!r} on rank 0, {own_name!r} on rank {collectives.rank}"
            )
        own_location = node_discovery.mine(collectives.local_rank, collectives.host)
        nodes = node_discovery.nodes(collectives.allgather_object(own_location, "tfsps_locations"))
        return cls(name, uuid, run, seed, life, index_seed, collectives.rank, collectives.size, tuple(nodes))


def digest(*parts: str) -> str:
    """32 hexadecimal digits that follow from texts."""
    return hashlib.sha256("\0".join(("tf_sparse_ps", *parts)).encode()).hexdigest()[:32]
