"""Hosts emulated on this machine, for jobs whose traffic is to be counted and slowed down.

```
namespace "switch":   bridge 10.77.0.254 --+-- port0 ==veth== eth0 10.77.0.1  namespace "host0"
                                           +-- port1 ==veth== eth0 10.77.0.2  namespace "host1"
```

A host has its own network interface, hostname, /etc/hosts and /dev/shm, hence its own tables. Both ends of its cable
carry a token bucket filter, so it sends and receives at the same limited rate (full duplex). The machine's
processors and other memory are common to all hosts.

Nothing of this is visible outside, and nothing can be left behind: bridge, cables, names and /dev/shm lie in namespaces
that belong to processes, those processes to one process namespace, and its first process reads a pipe that only this
process holds. Whatever ends this process, `kill -9` included, closes the pipe, and the kernel removes the rest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

_TOOLS = ("ip", "tc", "mount", "nsenter", "setpriv", "taskset", "unshare")
_MOST = 200
_CLOSE_S = 10.0
_ISOLATE = ("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
# A burst must hold the largest packet (64 KiB, offloading is on). What may queue is 50 ms: TCP loses nothing in a ring.
_LIMIT = "root tbf rate {}kbit burst 256kb latency 50ms"
SWITCH_ADDRESS = "10.77.0.254"


class HostsUnavailable(RuntimeError):
    """This machine, or this user, cannot emulate hosts; the text says what is missing."""


class Hosts:
    """The running hosts; `emulated` makes them.

    Attributes:
        names: hostnames, in order.
    """

    def __init__(self, keeper: subprocess.Popen[str], names: Sequence[str]) -> None:
        """Takes over the first process of the switch's namespaces."""
        self.names = tuple(names)
        self._keeper = keeper
        self._enter = ["nsenter", "--target", str(keeper.pid), "--net", "--mount", "--uts", "--ipc"]
        # The keeper's parent is outside of the process namespace that it made for its children.
        self._enter += [f"--pid=/proc/{keeper.pid}/ns/pid_for_children"]
        # nsenter forks; so the command ends with it.
        self._enter += ["setpriv", "--pdeathsig", "KILL", "--"]

    def start(
        self,
        command: Sequence[str],
        *,
        host: int | None,
        env: Mapping[str, str] | None = None,
        output: IO[str] | int | None = None,
    ) -> subprocess.Popen[str]:
        """Starts a program on a host, in a session of its own and in the folder /.

        `kill()` of what is returned ends it.

        Args:
            command: with its arguments.
            host: number of the host; None: the switch, which all hosts reach at `SWITCH_ADDRESS`.
            env: its whole environment; None: this process's.
            output: where its standard output and error go.
        """
        place = [] if host is None else _on_host(self.names[host])
        return subprocess.Popen(
            [*self._enter, *place, *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        """Kills everything that runs on the hosts and removes them."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:  # it was still at its setup
            self._keeper.kill()
            self._keeper.wait()


@contextlib.contextmanager
def emulated(count: int, *, mbit_per_s: float | None = None) -> Iterator[Hosts]:
    """Makes hosts "host0" ..., and removes them with everything that runs on them.

    Args:
        count: number of hosts.
        mbit_per_s: limit of what a host sends, and of what it receives, in 10^6 bits per second; None: no limit.

    Raises:
        HostsUnavailable: naming what is missing.
    """
    if not 1 <= count <= _MOST:
        raise ValueError(f"`count` must be 1 to {_MOST} hosts. Received: {count}")
    if mbit_per_s is not None and mbit_per_s <= 0:
        raise ValueError(f"`mbit_per_s` must be positive, or None. Received: {mbit_per_s}")
    if reason := unavailable():
        raise HostsUnavailable(reason)
    names = [f"host{number}" for number in range(count)]
    keeper = subprocess.Popen(
        [*_ISOLATE, "sh", "-e", "-c", _setup(names, mbit_per_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # an interrupt from the terminal is for this process, which then closes the hosts
    )
    hosts = Hosts(keeper, names)
    try:
        assert keeper.stdout is not None
        if refusal := _refusal(keeper.stdout):
            raise HostsUnavailable(f"hosts cannot be emulated here: {refusal}")
        yield hosts
    finally:
        hosts.close()


def unavailable() -> str | None:
    """Why hosts cannot be emulated here; None if they probably can."""
    missing = [f"the program {tool}" for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        missing.append("root's rights")
    return f"hosts cannot be emulated here. Missing: {', '.join(missing)}" if missing else None


def _refusal(output: IO[str]) -> str | None:
    """What the keeper printed if it ended early; None when the hosts are ready."""
    printed = []
    for line in output:
        if line == "ready\n":
            return None
        printed.append(line)
    return "".join(printed).strip() or "unshare ended without a word"


def _setup(names: Sequence[str], mbit_per_s: float | None) -> str:
    """The shell commands of the keeper, which then waits until its input ends."""
    lines = [
        "mount -t tmpfs tmpfs /run",  # a private /run/netns
        "mount -t tmpfs tmpfs /dev/shm",
        "ip link set lo up",
        "ip link add switch type bridge",
        f"ip address add {SWITCH_ADDRESS}/24 dev switch",
        "ip link set switch up",
    ]
    addresses = [f"10.77.0.{number + 1}" for number in range(len(names))]
    table = "\\n".join(f"{address} {name}" for address, name in zip(addresses, names, strict=True))
    for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
        lines += [
            f"ip netns add {name}",
            f"ip link add port{number} type veth peer name eth0 netns {name}",
            f"ip link set port{number} master switch up",
            f"ip -n {name} link set lo up",
            f"ip -n {name} address add {address}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"mkdir -p /run/{name}/shm",
            f"mount -t tmpfs tmpfs /run/{name}/shm",
            f"printf '127.0.0.1 localhost\\n{table}\\n' > /run/{name}/hosts",
        ]
        if mbit_per_s is not None:
            limit = _LIMIT.format(round(mbit_per_s * 1000))
            lines += [f"tc qdisc add dev port{number} {limit}", f"tc -n {name} qdisc add dev eth0 {limit}"]
    return "\n".join([*lines, "echo ready", "exec cat > /dev/null"])


def _on_host(name: str) -> list[str]:
    """A command's prefix that moves it to a host."""
    files = f"mount --bind /run/{name}/shm /dev/shm && mount --bind /run/{name}/hosts /etc/hosts"
    return [
        "ip",
        "netns",
        "exec",
        name,
        "unshare",
        "--uts",
        "sh",
        "-c",
        f'{files} && hostname {name} && exec "$@"',
        "sh",
    ]
