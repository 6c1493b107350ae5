"""Finds out which ranks of a job share a node, and checks that the nodes can reach each other by name."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import socket
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Location:
    """The location of one rank.

    Attributes:
      host: A text that differs between the nodes of a job. Two nodes of one machine differ in their names with
        horovodrun, and in their folders of tables with tf.distribute.
      local_rank: The local rank.
      machine: The machine's boot id, the same for all nodes that run on it.
      hostname: The machine's own name.
      address: The address to which the machine resolves this name; "" if it does not, or if no rank needs the address.
      folder: The folder of the tables of all jobs, TFSPS_DIR.
      same_folder: A text that is equal on ranks that see the same folder (see the function `same_folder`).
    """

    host: str
    local_rank: int
    machine: str
    hostname: str
    address: str
    folder: str = ""
    same_folder: str = ""


def mine(local_rank: int, host: str | None = None, folder: str | None = None) -> Location:
    """Returns the location of this process.

    Args:
      local_rank: The local rank of this process.
      host: The `Collectives.host`; None: the machine's name, or the one that horovodrun gives it.
      folder: The folder of the tables of all jobs, which exists. None: ranks do not compare it.
    """
    hostname = socket.gethostname()
    folders = ("", "") if folder is None else (folder, same_folder(folder))
    if host is not None:
        return Location(host, local_rank, boot_id(), hostname, "", *folders)
    try:
        address = socket.gethostbyname(hostname)
    except OSError:
        address = ""
    name = os.environ.get("HOROVOD_HOSTNAME") or hostname
    return Location(name, local_rank, boot_id(), hostname, address, *folders)


def boot_id() -> str:
    """Returns the boot id of this machine, or its hostname if the machine has no /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def same_folder(path: str) -> str:
    """Returns a text that is equal in two processes if and only if `path` is the same folder of the same machine.

    Containers of a machine share its boot id, but each usually has its own /dev/shm. The device number distinguishes
    these.
    """
    facts = os.stat(path)
    return f"{boot_id()}:{facts.st_dev}:{facts.st_ino}"


def nodes(locations: list[Location]) -> list[int]:
    """Returns the node number of every rank. Nodes are counted in the order of their first ranks.

    Args:
      locations: The locations of all ranks, in the order of the ranks.

    Raises:
      ValueError: The local ranks of a node are not 0, 1, 2, ...; or the ranks of a node have different TFSPS_DIR; or
        the job spans machines, and a machine resolves its own name to a loopback address, at which Horovod on the
        other machines cannot reach it.
    """
    hosts = list(dict.fromkeys(location.host for location in locations))
    for host in hosts:
        local_ranks = [location.local_rank for location in locations if location.host == host]
        if local_ranks != list(range(len(local_ranks))):
            raise ValueError(
                f"the ranks of host {host!r} have the local ranks {local_ranks}. Expected: "
                f"{list(range(len(local_ranks)))}. Give each machine a different name"
            )
        here = [(rank, location) for rank, location in enumerate(locations) if location.host == host]
        if len({location.same_folder for _, location in here}) > 1:
            raise ValueError(
                f"the ranks of host {host!r} share its tables, and TFSPS_DIR differs between them: "
                + ", ".join(f"{location.folder!r} on rank {rank}" for rank, location in here)
                + ". Set it to the same folder on all of them. In containers, mount that folder into each"
            )
    if len({location.machine for location in locations}) > 1:
        for rank, location in enumerate(locations):
            if location.address and ipaddress.ip_address(location.address).is_loopback:
                raise ValueError(
                    f"the job spans several machines, and on that of rank {rank} the hostname {location.hostname!r} "
                    f"resolves to {location.address}, where Horovod on other machines cannot reach it. Give the name "
                    "the machine's address in /etc/hosts"
                )
    return [hosts.index(location.host) for location in locations]
