"""What a rank finds in its environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence

from tf_sparse_ps.launch.meeting import Node, interface_of

# Threads of a process's arithmetic, which else are as many as the machine has cores, in every rank.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a rank is among all.

    Attributes:
      rank, size: Among all ranks.
      local_rank, local_size: Among those of its node.
      cross_rank, cross_size: Among those of other nodes that have its local rank.
      node_rank: Its node.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    node_rank: int


@dataclasses.dataclass(frozen=True)
class Slot:
    """A rank as Horovod's rendezvous server counts those that meet by it.

    Attributes:
      hostname: The name of its node.
      size, local_rank, local_size, cross_size: See `Placement`.
    """

    hostname: str
    size: int
    local_rank: int
    local_size: int
    cross_size: int


def placements(nodes: Sequence[Node]) -> list[Placement]:
    """Of all ranks, in their order: node 0's first."""
    size = sum(node.ranks for node in nodes)
    found: list[Placement] = []
    for node_rank, node in enumerate(nodes):
        for local_rank in range(node.ranks):
            cross = [k for k, one in enumerate(nodes) if one.ranks > local_rank]
            found.append(
                Placement(len(found), size, local_rank, node.ranks, cross.index(node_rank), len(cross), node_rank)
            )
    return found


def host_names(nodes: Sequence[Node]) -> list[str]:
    """A name for each node that no other has, though two may be on one machine."""
    hosts = [node.host for node in nodes]
    return [host if hosts.count(host) == 1 else f"{host}-{k}" for k, host in enumerate(hosts)]


def common(inherited: Mapping[str, str], local_size: int) -> dict[str, str]:
    """What all ranks of a node have: the launcher's environment, and defaults for what is not set in it.

    Args:
      inherited: The launcher's environment.
      local_size: Ranks of the node.
    """
    found = dict(inherited)
    found.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # or TensorFlow says at every start what it was built with
    if local_size > 1:
        cores = len(os.sched_getaffinity(0))
        for name in _THREADS:
            found.setdefault(name, str(max(1, cores // local_size)))
    return found


def of_rank(placement: Placement, key_values: str, secret: str) -> dict[str, str]:
    """What tells a rank who it is, whatever it communicates by.

    Args:
      placement: The rank's.
      key_values: Host and port of the key-value store.
      secret: Signs the requests of ranks to it.
    """
    return {
        "TFSPS_RANK": str(placement.rank),
        "TFSPS_SIZE": str(placement.size),
        "TFSPS_LOCAL_RANK": str(placement.local_rank),
        "TFSPS_LOCAL_SIZE": str(placement.local_size),
        "TFSPS_NODE_RANK": str(placement.node_rank),
        "TFSPS_KEY_VALUES": key_values,
        "TFSPS_SECRET": secret,
    }


def of_tensorflow(placement: Placement, nodes: Sequence[Node]) -> dict[str, str]:
    """What tf.distribute reads."""
    workers = [f"{node.host}:{port}" for node in nodes for port in node.ports]
    task = {"type": "worker", "index": placement.rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}


def slots(nodes: Sequence[Node]) -> list[Slot]:
    """What Horovod's rendezvous server is told of all ranks."""
    names = host_names(nodes)
    return [
        Slot(names[one.node_rank], one.size, one.local_rank, one.local_size, one.cross_size)
        for one in placements(nodes)
    ]


def of_horovod(placement: Placement, nodes: Sequence[Node], rendezvous: tuple[str, int]) -> dict[str, str]:
    """What Horovod reads.

    Args:
      placement: The rank's.
      nodes: All.
      rendezvous: Host and port of Horovod's rendezvous server.
    """
    interface = interface_of(nodes[placement.node_rank].host)
    return {
        "HOROVOD_HOSTNAME": host_names(nodes)[placement.node_rank],
        "HOROVOD_RANK": str(placement.rank),
        "HOROVOD_SIZE": str(placement.size),
        "HOROVOD_LOCAL_RANK": str(placement.local_rank),
        "HOROVOD_LOCAL_SIZE": str(placement.local_size),
        "HOROVOD_CROSS_RANK": str(placement.cross_rank),
        "HOROVOD_CROSS_SIZE": str(placement.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous[1]),
        **({"HOROVOD_GLOO_IFACE": interface} if interface else {}),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
