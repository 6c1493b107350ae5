"""Where the ranks of a job are: which share a node, and whether nodes can reach each other by name."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import socket
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Location:
    """Where one rank is.

    Attributes:
      host: What tells its node from the job's others; two nodes of one machine have two names with horovodrun, and
        two folders of tables with tf.distribute.
      local_rank: Its number on the node.
      machine: The machine's boot, the same for all nodes that run on it.
      hostname: The machine's own name.
      address: What that name resolves to there; "" when it does not, or when nobody looks for it.
      folder: Of the tables of all jobs, TFSPS_DIR.
      same_folder: Tells that folder from others (`same_folder`).
    """

    host: str
    local_rank: int
    machine: str
    hostname: str
    address: str
    folder: str = ""
    same_folder: str = ""


def mine(local_rank: int, host: str | None = None, folder: str | None = None) -> Location:
    """Where this process is.

    Args:
      local_rank: Its number on the node.
      host: `Collectives.host`.
      folder: Of the tables of all jobs. It exists. None: ranks do not compare it.
    """
    hostname = socket.gethostname()
    found = ("", "") if folder is None else (folder, same_folder(folder))
    if host is not None:
        return Location(host, local_rank, boot_id(), hostname, "", *found)
    try:
        address = socket.gethostbyname(hostname)
    except OSError:
        address = ""
    name = os.environ.get("HOROVOD_HOSTNAME") or hostname
    return Location(name, local_rank, boot_id(), hostname, address, *found)


def boot_id() -> str:
    """The boot of this machine, or its hostname where there is no /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def same_folder(path: str) -> str:
    """A text that is equal in two processes if and only if `path` leads both to one folder on one running machine.

    Containers of a machine share its boot id, and each has a /dev/shm of its own unless told otherwise: its device
    number tells them apart.
    """
    facts = os.stat(path)
    return f"{boot_id()}:{facts.st_dev}:{facts.st_ino}"


def nodes(locations: list[Location]) -> list[int]:
    """The node of every rank, counted in the order of their first ranks.

    Args:
      locations: Of all ranks, in their order.

    Raises:
      ValueError: The local ranks of a node are not 0, 1, 2, ...; the ranks of a node have different TFSPS_DIR; or the
        job spans machines, and the name of one leads back to itself, so that Horovod on the others cannot reach it.
    """
    hosts = list(dict.fromkeys(location.host for location in locations))
    for host in hosts:
        local_ranks = [location.local_rank for location in locations if location.host == host]
        if local_ranks != list(range(len(local_ranks))):
            raise ValueError(
                f"the ranks of host {host!r} have the local ranks {local_ranks}. Expected: "
                f"{list(range(len(local_ranks)))}; each machine must have a name of its own"
            )
        here = [(rank, location) for rank, location in enumerate(locations) if location.host == host]
        if len({location.same_folder for _, location in here}) > 1:
            raise ValueError(
                f"the ranks of host {host!r} share its tables, and TFSPS_DIR differs between them: "
                + ", ".join(f"{location.folder!r} on rank {rank}" for rank, location in here)
                + ". Set it to one folder on all of them, in which containers of one machine see the same files"
            )
    if len({location.machine for location in locations}) > 1:
        for rank, location in enumerate(locations):
            if location.address and ipaddress.ip_address(location.address).is_loopback:
                raise ValueError(
                    f"the job spans several machines, and on that of rank {rank} the hostname {location.hostname!r} "
                    f"resolves to {location.address}, where Horovod on the others looks for it in vain. Give the name "
                    "the machine's address in /etc/hosts"
                )
    return [hosts.index(location.host) for location in locations]
