"""`Identity`: who a rank is in its job. All ranks find it out together, once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
from typing import Any

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.node import job_folder, node_discovery


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
          ValueError: On all ranks: TFSPS_JOB is no name, or differs between ranks; ranks cannot tell which nodes they
            share, or those of one node have different TFSPS_DIR; another rank has an error of its own.
          AccessError, NoSpaceError: From the folder of tables of this rank.
        """
        own = _OwnFacts.find(collectives)
        everyone: list[_OwnFacts] = collectives.allgather_object(own, "tsps.job")
        if problems := [f"rank {rank}: {one.problem}" for rank, one in enumerate(everyone) if one.problem]:
            if own.error is not None:
                raise own.error
            raise ValueError(f"the job cannot begin: {'; '.join(problems)}")
        for rank, one in enumerate(everyone):
            if one.name != everyone[0].name:
                raise ValueError(
                    f"TFSPS_JOB differs between ranks: {everyone[0].name!r} on rank 0, {one.name!r} on rank {rank}"
                )
        nodes = node_discovery.nodes([one.location for one in everyone if one.location is not None])
        of_0 = everyone[0]
        uuid = of_0.random if of_0.name is None else digest("job", of_0.name)
        return cls(
            of_0.name,
            uuid,
            of_0.run,
            of_0.keras_seed,
            of_0.life,
            of_0.index_seed,
            collectives.rank,
            collectives.size,
            tuple(nodes),
        )


@dataclasses.dataclass
class _OwnFacts:
    """What a rank tells the others.

    Attributes:
      name: TFSPS_JOB.
      random: The job's uuid, if it is unnamed and this is rank 0.
      run, keras_seed, life, index_seed: See `Identity`; rank 0's count.
      location: Where it is.
      problem: Why it cannot take part; "": it can.
      error: The same, on the rank itself.
    """

    name: str | None
    random: str
    run: str
    keras_seed: str | None
    life: int
    index_seed: int
    location: node_discovery.Location | None = None
    problem: str = ""
    error: Exception | None = None

    @classmethod
    def find(cls, collectives: Collectives) -> _OwnFacts:
        """Those of this rank."""
        name = os.environ.get("TFSPS_JOB") or None
        seed = None if name else _keras.random_seed()[0]
        drawn = secrets.randbits(62) + 1, secrets.randbits(63)
        facts = cls(name, secrets.token_hex(16), secrets.token_hex(8), seed, *drawn)
        try:
            if name is not None and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name):
                raise ValueError(
                    "TFSPS_JOB must be 1 to 100 letters, digits, '.', '_' or '-', not starting with '.'. "
                    f"Received: {name!r}"
                )
            facts.location = node_discovery.mine(collectives.local_rank, collectives.host, job_folder.prepare())
        except Exception as error:
            facts.problem, facts.error = f"{type(error).__name__}: {error}", error
        return facts

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"error": None}


def digest(*parts: str) -> str:
    """32 hexadecimal digits that follow from texts."""
    return hashlib.sha256("\0".join(("tf_sparse_ps", *parts)).encode()).hexdigest()[:32]
