"""Hosts emulated on this machine, for jobs whose traffic is counted and slowed down.

```
namespace "switch":   bridge 10.77.0.254 --+-- port0 ==veth== eth0 10.77.0.1  namespace "host0"
                                           +-- port1 ==veth== eth0 10.77.0.2  namespace "host1"
```

A host has its own network interface, hostname, /etc/hosts and /dev/shm, and therefore its own tables. Both ends of its
cable carry a token bucket filter, so it sends and receives at the same limited rate (full duplex). All hosts share the
machine's processors and other memory.

Nothing of this is visible outside, and nothing can be left over. Bridge, cables, names and /dev/shm are in namespaces
that belong to processes. These processes are in one process namespace, whose first process reads a pipe that only this
process holds. When this process ends, even by `kill -9`, the pipe is closed, and the kernel removes everything.
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
# A burst must hold the largest packet (64 KiB, because offloading is on). The queue holds 50 ms, so that TCP loses
# nothing in a ring.
_LIMIT = "root tbf rate {}kbit burst 256kb latency 50ms"
SWITCH_ADDRESS = "10.77.0.254"


class HostsUnavailable(RuntimeError):
    """This machine, or this user, cannot emulate hosts. The text names what is missing."""


class Hosts:
    """Running hosts, which `emulated` makes.

    Attributes:
        names: The hostnames, in order.
    """

    def __init__(self, keeper: subprocess.Popen[str], names: Sequence[str]) -> None:
        """Takes over the first process of the switch's namespaces."""
        self.names = tuple(names)
        self._keeper = keeper
        self._enter = ["nsenter", "--target", str(keeper.pid), "--net", "--mount", "--uts", "--ipc"]
        # The keeper's parent is outside of the process namespace that it made for its children.
        self._enter += [f"--pid=/proc/{keeper.pid}/ns/pid_for_children"]
        # nsenter forks, so the command must end when nsenter does.
        self._enter += ["setpriv", "--pdeathsig", "KILL", "--"]

    def start(
        self,
        command: Sequence[str],
        *,
        host: int | None,
        env: Mapping[str, str] | None = None,
        output: IO[str] | int | None = None,
    ) -> subprocess.Popen[str]:
        """Starts a program on a host, in its own session and in the folder /.

        `kill()` of the result ends the program.

        Args:
            command: The command and its arguments.
            host: The number of the host; None: the switch, which all hosts reach at `SWITCH_ADDRESS`.
            env: The whole environment; None: this process's environment.
            output: The target of its standard output and error.
        """
        prefix = [] if host is None else _on_host(self.names[host])
        return subprocess.Popen(
            [*self._enter, *prefix, *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        """Kills everything that runs on the hosts, and removes the hosts."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:  # the setup was still running
            self._keeper.kill()
            self._keeper.wait()


@contextlib.contextmanager
def emulated(count: int, *, mbit_per_s: float | None = None) -> Iterator[Hosts]:
    """Makes hosts "host0" ..., and removes them afterwards, with everything that runs on them.

    Args:
        count: The number of hosts.
        mbit_per_s: The limit for sending, and for receiving, of a host, in 10^6 bits per second; None: no limit.

    Raises:
        HostsUnavailable: Hosts cannot be emulated. The text names what is missing.
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
        start_new_session=True,  # this process handles an interrupt from the terminal, and closes the hosts
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
    """Returns the reason why hosts cannot be emulated here; None if they probably can."""
    missing = [f"the program {tool}" for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        missing.append("root's rights")
    return f"hosts cannot be emulated here. Missing: {', '.join(missing)}" if missing else None


def _refusal(output: IO[str]) -> str | None:
    """Returns the output of a keeper that ended early; None when the hosts are ready."""
    printed = []
    for line in output:
        if line == "ready\n":
            return None
        printed.append(line)
    return "".join(printed).strip() or "unshare ended without an error message"


def _setup(names: Sequence[str], mbit_per_s: float | None) -> str:
    """Returns the shell commands of the keeper, which then waits until its input ends."""
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
    """Returns the prefix that makes a command run on a host."""
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
