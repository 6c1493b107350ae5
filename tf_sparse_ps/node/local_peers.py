"""Which user of this machine is at the other end of a connection.

Other machines of the job's network are trusted, other users of this machine are not. The kernel lists each TCP socket
with its owner in /proc/net/tcp and /proc/net/tcp6.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9  # columns
_MAPPED = "0000000000000000FFFF0000"  # begins an IPv4 address in the table of IPv6 sockets


def may_connect(connection: socket.socket) -> bool:
    """Returns whether an accepted IPv4 connection comes from this user, from root, or from another machine.

    A connection whose client has closed its end already is refused: the kernel does not know its owner any more. Where
    the kernel does not show its tables, every connection passes.
    """
    try:
        peer, own = connection.getpeername(), connection.getsockname()
    except OSError:
        return False  # it is gone
    if not _is_of_this_machine(peer[0]):
        return True
    owners = _owners(_form(peer), _form(own))
    return owners is None or bool(owners & {0, os.geteuid()})


def _is_of_this_machine(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _form(address: tuple[str, int]) -> str:
    """An address as the kernel's tables have it: the bytes of each word in the machine's order."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


def _owners(local: str, remote: str) -> set[int] | None:
    """The users of the sockets between two addresses; None: the tables cannot be read."""
    found: set[int] = set()
    readable = False
    for table in _TABLES:
        with contextlib.suppress(OSError), open(table) as rows:
            readable = True
            for row in rows:
                columns = row.split()
                ends = [end.removeprefix(_MAPPED) for end in columns[_LOCAL : _REMOTE + 1]]
                # A socket that no process has any more is root's, with inode 0.
                if ends == [local, remote] and columns[_INODE] != "0":
                    found.add(int(columns[_UID]))
    return found if readable else None
