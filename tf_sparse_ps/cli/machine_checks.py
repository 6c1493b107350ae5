"""Checks of this machine: room for tables, memory limits, huge pages, ulimits, its name and its ports."""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from tf_sparse_ps.cli.checks import NOTE, OK, PROBLEM, Check
from tf_sparse_ps.cli.display import size
from tf_sparse_ps.errors import AccessError
from tf_sparse_ps.folders import Folder, Trust

_CONTAINER_SHM = 64 << 20  # what containers give /dev/shm by default
_LITTLE_ROOM = 1 << 30
_COLLAPSE = (6, 1)  # the first Linux that makes huge pages of a table
_FEW_FILES, _TOO_FEW_FILES = 2048, 256  # rows on disk use a sixteenth of them, at most 128
_FEW_PORTS = 1000
_NO_LIMIT = 1 << 60


def all_of(folder: str) -> Iterator[Check]:
    """Yields the checks. `folder`: that of the tables."""
    yield access(folder)
    yield room(folder)
    yield memory()
    yield huge_pages(platform.release())
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    yield host_name()
    yield ports()


def access(folder: str) -> Check:
    """Checks whether this user, and nobody else, can write the folder of tables or make it."""
    facts = {"path": folder}
    try:
        Folder.open(_existing(folder), Trust.OWN).close()
    except (AccessError, OSError) as error:
        remedy = "Set TFSPS_DIR to a folder that only you can write"
        return Check("folder of tables", PROBLEM, str(error), remedy, facts)
    if not os.access(_existing(folder), os.W_OK | os.X_OK):
        remedy = "Set TFSPS_DIR to a folder that you can write"
        return Check("folder of tables", PROBLEM, f"{folder} cannot be written by this user", remedy, facts)
    return Check("folder of tables", OK, folder, facts=facts)


def room(folder: str, mounts: Path = Path("/proc/self/mounts")) -> Check:
    """Checks the room for tables."""
    status = os.statvfs(_existing(folder))
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    kind = _file_system(folder, mounts)
    facts = {"bytes": total, "free": free, "file_system": kind}
    finding = f"{size(free)} of {size(total)} free on {kind or 'an unknown file system'}"
    if total <= _CONTAINER_SHM:
        remedy = "Start the container with --shm-size, or set TFSPS_DIR"
        return Check("room for tables", PROBLEM, finding, remedy, facts)
    if kind not in ("tmpfs", "ramfs", None):
        return Check("room for tables", NOTE, finding, "Tables on a disk are slow. Set TFSPS_DIR to a tmpfs", facts)
    if free < _LITTLE_ROOM:
        remedy = "Enlarge it (`mount -o remount,size=64g /dev/shm`), or run `tf-sparse-ps clean`"
        return Check("room for tables", NOTE, finding, remedy, facts)
    return Check("room for tables", OK, finding, facts=facts)


def memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Check:
    """Checks the memory of the machine and of the cgroups of this process. Shared memory counts towards both."""
    lines = dict(re.findall(r"^(\w+): +(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE))
    total, available = (int(lines.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable"))
    headroom = cgroup_headroom(proc / "self/cgroup", cgroups)
    facts = {"bytes": total, "available": available, "cgroup_headroom": headroom}
    finding = f"{size(available)} of {size(total)} available" + (
        "" if headroom is None else f"; the cgroup allows {size(headroom)} more"
    )
    usable = available if headroom is None else min(available, headroom)
    if usable < _LITTLE_ROOM:
        remedy = "End other programs, or raise the memory limit of the container or job, which counts shared memory"
        return Check("memory", PROBLEM if usable < _LITTLE_ROOM // 4 else NOTE, finding, remedy, facts)
    return Check("memory", OK, finding, facts=facts)


def cgroup_headroom(own: Path, cgroups: Path) -> int | None:
    """Returns the bytes that the memory cgroups of this process and their parents still allow; None: no limit.

    Args:
      own: The file that names the cgroups of the process.
      cgroups: Where cgroups are mounted.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroups, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = root / path.lstrip("/")
        for parent in (folder, *folder.parents):
            rooms += [room for room in [_room_in(parent, *names)] if room is not None]
            if parent == root:
                break
    return min(rooms, default=None)


def _room_in(folder: Path, limit_name: str, usage_name: str) -> int | None:
    try:
        limit = int((folder / limit_name).read_text())
        usage = int((folder / usage_name).read_text())
    except (OSError, ValueError):  # "max", or a container that does not see the cgroup
        return None
    return None if limit >= _NO_LIMIT else max(0, limit - usage)


def huge_pages(release: str, setting: Path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")) -> Check:
    """Checks whether tables can be in huge pages."""
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (0, 0) if match is None else (int(match[1]), int(match[2]))
    try:
        chosen = re.findall(r"\[(\w+)\]", setting.read_text())
    except OSError:
        chosen = []
    wanted = os.environ.get("TFSPS_HUGE_PAGES") != "0"
    facts = {"kernel": release, "shmem_enabled": chosen[0] if chosen else None, "wanted": wanted}
    if not wanted:
        return Check("huge pages", OK, "TFSPS_HUGE_PAGES=0 keeps small pages", facts=facts)
    if version < _COLLAPSE:
        remedy = "Lookups in large tables are slower in small pages. Use Linux 6.1 or later"
        return Check("huge pages", NOTE, f"Linux {release} makes none of tables", remedy, facts)
    if not chosen or chosen[0] == "deny":
        remedy = f"Lookups in large tables are slower in small pages. Run `echo never > {setting}` as root"
        return Check("huge pages", NOTE, "shared memory may not have them", remedy, facts)
    return Check("huge pages", OK, f"Linux {release} makes them of tables of 32 MiB or more", facts=facts)


def open_files(limit: int) -> Check:
    """Checks the limit of open files."""
    facts = {"limit": None if limit == resource.RLIM_INFINITY else limit}
    finding = "no limit" if facts["limit"] is None else f"{limit:,} open files"
    if facts["limit"] is None or limit >= _FEW_FILES:
        return Check("open files", OK, finding, facts=facts)
    status = PROBLEM if limit < _TOO_FEW_FILES else NOTE
    return Check("open files", status, finding, f"Run `ulimit -n {_FEW_FILES}` before the job", facts)


def locked_memory(limit: int) -> Check:
    """Reports the limit of locked memory. Tables are not locked; some networks and device drivers lock buffers."""
    facts = {"limit": None if limit == resource.RLIM_INFINITY else limit}
    finding = "no limit" if facts["limit"] is None else f"{size(limit)}, of which tables need none"
    return Check("locked memory", OK, finding, facts=facts)


def host_name() -> Check:
    """Checks whether the machine's own name has an address, at which other machines reach it."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        facts = {"name": name, "addresses": []}
        remedy = f"Horovod needs one. Give it one in /etc/hosts (on a single machine: `127.0.0.1 {name}`)"
        return Check("host name", PROBLEM, f"{name!r} has no address", remedy, facts)
    addresses = sorted({str(entry[4][0]) for entry in found})
    facts = {"name": name, "addresses": addresses}
    finding = f"{name} is {', '.join(addresses)}"
    if all(address.startswith("127.") for address in addresses):
        remedy = "Jobs on one machine work. For several, give the name its address on the network in /etc/hosts"
        return Check("host name", NOTE, finding, remedy, facts)
    return Check("host name", OK, finding, facts=facts)


def ports(setting: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> Check:
    """Checks whether a process of this machine can listen at a free port, and another one connect to it."""
    try:
        low, high = map(int, setting.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999  # Linux's default
    facts = {"lowest": low, "highest": high}
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=1.0).close()
    except OSError as error:
        remedy = "Ranks connect to each other at 127.0.0.1 and at free ports. Let the firewall allow that"
        return Check("ports", PROBLEM, f"no connection at 127.0.0.1: {error}", remedy, facts)
    finding = f"free ports from {low} to {high}"
    if high - low < _FEW_PORTS:
        remedy = "Run `sysctl net.ipv4.ip_local_port_range='32768 60999'` as root"
        return Check("ports", NOTE, finding, remedy, facts)
    return Check("ports", OK, finding, facts=facts)


def _existing(path: str) -> str:
    """Returns a path, or the nearest folder above it that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _file_system(path: str, mounts: Path) -> str | None:
    """Returns the type of the file system of a path; None if it is not known."""
    real, best, kind = os.path.realpath(_existing(path)), "", None
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        point, found = line.split()[1:3]
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, found
    return kind
