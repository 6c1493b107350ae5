"""Finds the user of this machine at the other end of a connection.

Other machines of the job's network are trusted, other users of this machine are not. The kernel lists each TCP socket
with its owner in /proc/net/tcp and /proc/net/tcp6.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9  # columns of the tables
_MAPPED = "0000000000000000FFFF0000"  # the prefix of an IPv4 address in the table of IPv6 sockets


def may_connect(connection: socket.socket) -> bool:
    """Whether an accepted IPv4 connection comes from this user, from root, or from another machine.

    If the client has already closed its end, the connection is refused, because the kernel no longer knows its owner.
    If the kernel does not show its tables, every connection passes.
    """
    try:
        peer, this_end = connection.getpeername(), connection.getsockname()
    except OSError:
        return False  # the connection was closed
    if not _is_local_address(peer[0]):
        return True
    owners = _owners(_kernel_form(peer), _kernel_form(this_end))
    return owners is None or bool(owners & {0, os.geteuid()})


def _is_local_address(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _kernel_form(address: tuple[str, int]) -> str:
    """Returns an address in the form of the kernel's tables: the bytes of each word in the machine's order."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


def _owners(local: str, remote: str) -> set[int] | None:
    """Returns the users of the sockets between two addresses, or None if the tables cannot be read."""
    users: set[int] = set()
    readable = False
    for table in _TABLES:
        with contextlib.suppress(OSError), open(table) as rows:
            readable = True
            for row in rows:
                columns = row.split()
                ends = [end.removeprefix(_MAPPED) for end in columns[_LOCAL : _REMOTE + 1]]
                # The table shows a socket that no process has open any more as root's, with inode 0.
                if ends == [local, remote] and columns[_INODE] != "0":
                    users.add(int(columns[_UID]))
    return users if readable else None
