"""The environment variables that the launcher sets for its ranks."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence

from tf_sparse_ps.launch.meeting import Node, interface_of

# The numbers of arithmetic threads of a process. Without these variables, each rank starts one per core of the machine.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


@dataclasses.dataclass(frozen=True)
class Placement:
    """The position of a rank in the job.

    Attributes:
      rank, size: The rank, and the number of ranks of the job.
      local_rank, local_size: The same among the ranks of the rank's node.
      cross_rank, cross_size: The same among the ranks of all nodes that have this local rank.
      node_rank: The number of the rank's node.
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
    """The position of a rank in the form that Horovod's rendezvous server expects.

    Attributes:
      hostname: The name of the rank's node.
      size, local_rank, local_size, cross_size: See `Placement`.
    """

    hostname: str
    size: int
    local_rank: int
    local_size: int
    cross_size: int


def placements(nodes: Sequence[Node]) -> list[Placement]:
    """Returns the placements of all ranks in rank order: first the ranks of node 0."""
    size = sum(node.ranks for node in nodes)
    results: list[Placement] = []
    for node_rank, node in enumerate(nodes):
        for local_rank in range(node.ranks):
            cross = [k for k, other in enumerate(nodes) if other.ranks > local_rank]
            results.append(
                Placement(len(results), size, local_rank, node.ranks, cross.index(node_rank), len(cross), node_rank)
            )
    return results


def host_names(nodes: Sequence[Node]) -> list[str]:
    """Returns a unique name for each node. Two nodes may be on the same machine."""
    hosts = [node.host for node in nodes]
    return [host if hosts.count(host) == 1 else f"{host}-{k}" for k, host in enumerate(hosts)]


def common(inherited: Mapping[str, str], local_size: int) -> dict[str, str]:
    """Returns the variables that all ranks of a node have: the launcher's environment and defaults for other variables.

    Args:
      inherited: The launcher's environment.
      local_size: The number of ranks of the node.
    """
    variables = dict(inherited)
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # without it, TensorFlow logs its build options at every start
    if local_size > 1:
        cores = len(os.sched_getaffinity(0))
        for name in _THREADS:
            variables.setdefault(name, str(max(1, cores // local_size)))
    return variables


def of_rank(placement: Placement, key_values: str, secret: str) -> dict[str, str]:
    """Returns the variables of one rank that do not depend on the collectives.

    Args:
      placement: The placement of the rank.
      key_values: The host and port of the key-value store.
      secret: The secret that signs the ranks' requests to the store.
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
    """Returns the variable that TensorFlow reads to connect the ranks.

    Args:
      placement: The placement of the rank.
      nodes: All nodes.
    """
    workers = [f"{node.host}:{port}" for node in nodes for port in node.ports]
    task = {"type": "worker", "index": placement.rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}


def slots(nodes: Sequence[Node]) -> list[Slot]:
    """Returns the slots of all ranks for Horovod's rendezvous server."""
    names = host_names(nodes)
    return [
        Slot(names[rank.node_rank], rank.size, rank.local_rank, rank.local_size, rank.cross_size)
        for rank in placements(nodes)
    ]


def of_horovod(placement: Placement, nodes: Sequence[Node], rendezvous: tuple[str, int]) -> dict[str, str]:
    """Returns the variables that Horovod reads.

    Args:
      placement: The placement of the rank.
      nodes: All nodes.
      rendezvous: The host and port of Horovod's rendezvous server.
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
