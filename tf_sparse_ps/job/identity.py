"""`Identity`: the job of a rank, and the rank's place in it. All ranks determine it together, once."""

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
    """The job of a rank, and the rank's place in it.

    Attributes:
      name: The value of TFSPS_JOB; None: the job is unnamed.
      uuid: The identity of the job: 32 hexadecimal digits, the same on all ranks, and in every run of a named job.
      run: The identity of this run of the job: 16 hexadecimal digits.
      keras_seed: The Keras seed of rank 0, if it was set; None in named jobs.
      life: A number that distinguishes the groups that this run makes from those of earlier runs, 1 to 2**62.
      index_seed: A secret random number, from which the seeds of the indexes of new groups are derived.
      rank, size: The rank of this process, and the number of ranks.
      nodes: The node of each rank. Nodes are numbered in the order of their first ranks.
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
        """The number of this rank's node."""
        return self.nodes[self.rank]

    @property
    def run_id(self) -> int:
        """`run` as the number that the groups of the nodes store, 1 to 2**63 - 1."""
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
        """Determines the identity together with the other ranks. Every rank calls this.

        Raises:
          ValueError: On all ranks: TFSPS_JOB is not a valid name, or differs between ranks; the ranks cannot find out
            which of them share a node, or ranks of one node have different TFSPS_DIR; another rank has failed.
          AccessError, NoSpaceError: This rank cannot use its folder of tables.
        """
        own_facts = _RankFacts.find(collectives)
        facts: list[_RankFacts] = collectives.allgather_object(own_facts, "tsps.job")
        problems = [f"rank {rank}: {rank_facts.problem}" for rank, rank_facts in enumerate(facts) if rank_facts.problem]
        if problems:
            if own_facts.error is not None:
                raise own_facts.error
            raise ValueError(f"the job cannot start, because other ranks have failed. {'; '.join(problems)}")
        first = facts[0]
        for rank, rank_facts in enumerate(facts):
            if rank_facts.name != first.name:
                raise ValueError(
                    f"TFSPS_JOB differs between ranks: {first.name!r} on rank 0, {rank_facts.name!r} on rank {rank}. "
                    "Set it to the same name on all ranks, or on none"
                )
        nodes = node_discovery.nodes([rank_facts.location for rank_facts in facts if rank_facts.location is not None])
        uuid = first.random if first.name is None else digest("job", first.name)
        return cls(
            first.name,
            uuid,
            first.run,
            first.keras_seed,
            first.life,
            first.index_seed,
            collectives.rank,
            collectives.size,
            tuple(nodes),
        )


@dataclasses.dataclass
class _RankFacts:
    """The facts about a rank that it sends to the others.

    Attributes:
      name: The value of TFSPS_JOB; None if it is not set.
      random: A random uuid. Rank 0's becomes the uuid of an unnamed job.
      run, keras_seed, life, index_seed: See `Identity`, which takes them from rank 0.
      location: The node of the rank.
      problem: Why the rank cannot take part; "" if it can.
      error: The error that `problem` describes. It is not sent.
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
    def find(cls, collectives: Collectives) -> _RankFacts:
        """Returns the facts about this rank."""
        name = os.environ.get("TFSPS_JOB") or None
        seed = None if name else _keras.random_seed()[0]
        life, index_seed = secrets.randbits(62) + 1, secrets.randbits(63)
        facts = cls(name, secrets.token_hex(16), secrets.token_hex(8), seed, life, index_seed)
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
    """Returns a hash of texts, 32 hexadecimal digits."""
    return hashlib.sha256("\0".join(("tf_sparse_ps", *parts)).encode()).hexdigest()[:32]
