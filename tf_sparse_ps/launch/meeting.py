"""`Meeting`: each launcher of a job describes its node in node 0's store, and waits for all other launchers.

job        the id of the job and its `Terms`, written by node 0 before it serves the store
node-<k>   a `Node`, created by launcher k; a second launcher with this number is refused
nodes      all nodes, written by node 0 when all launchers have connected
abort      why the job will not start
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import ipaddress
import itertools
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tf_sparse_ps.collectives.key_value_server import KeyValueServer
from tf_sparse_ps.collectives.signed_requests import VARIABLE
from tf_sparse_ps.errors import LaunchError, WrongSecretError
from tf_sparse_ps.launch import launch_secret
from tf_sparse_ps.launch.key_values import Client, Store, Texts

_POLL_S = 0.25
_CHECK_S = 5.0  # the time in which node 0 must reach its own store
_LOST_S = 5.0  # node 0 is lost after this time without an answer
_REMIND_S = 15.0
_ABORT_S = 2.0  # node 0 keeps its store for this time after an abort, so that the other launchers read it
_LOWEST_PORT = 10_000  # the lowest port of a rank
_SIOCGIFADDR = 0x8915


@dataclasses.dataclass(frozen=True)
class Node:
    """A node, as its launcher describes it.

    Attributes:
      host: The address at which other nodes can reach it.
      ranks: The number of its ranks.
      ports: The ports of its ranks for TensorFlow's collectives; empty with Horovod.
      rendezvous: The port of Horovod's rendezvous server, on node 0 with Horovod; else 0.
      named: With Horovod, the address to which the machine resolves its own name, because the ranks send it to each
        other; else "".
    """

    host: str
    ranks: int
    ports: tuple[int, ...] = ()
    rendezvous: int = 0
    named: str = ""

    @classmethod
    def of(cls, text: str) -> Node:
        """Returns the node that `text` represents."""
        fields = json.loads(text)
        return cls(**fields | {"ports": tuple(fields["ports"])})

    @property
    def text(self) -> str:
        """The node as a text, for the key-value store."""
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Terms:
    """The options that must be the same for all launchers of a job.

    Attributes:
      nnodes: The number of launchers.
      collectives: The library that connects the ranks.
    """

    nnodes: int
    collectives: str

    def check(self, own: Terms, node_rank: int) -> None:
        """Raises LaunchError if the terms of a launcher differ from node 0's, which are these.

        Args:
          own: The terms of the launcher.
          node_rank: The number of the launcher's node.
        """
        if own.nnodes != self.nnodes:
            raise LaunchError(
                f"the launchers were started with different --nnodes: {self.nnodes} with --node-rank 0, {own.nnodes} "
                f"with --node-rank {node_rank}. Give all launchers the same number",
                status=2,
            )
        if own.collectives != self.collectives:
            raise LaunchError(
                f"the launchers have chosen different collectives: {self.collectives} with --node-rank 0, "
                f"{own.collectives} with --node-rank {node_rank}. Give all launchers the same --collectives, or "
                "install Horovod on all machines",
                status=2,
            )


def _unassigned_ports() -> range:
    """Returns ports that the kernel does not assign to outgoing connections, so that they stay free for the ranks."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = 32768
    return range(_LOWEST_PORT, lowest) if lowest - _LOWEST_PORT >= 1000 else range(1024, 1 << 16)


class Ports:
    """Free ports of this machine, reserved until `release`.

    Attributes:
      numbers: The numbers of the ports.
    """

    def __init__(self, count: int) -> None:
        """Reserves `count` ports that are free on all addresses of the machine.

        Raises:
          LaunchError: The machine has too few free ports.
        """
        self._sockets: list[socket.socket] = []
        numbers = _unassigned_ports()
        first = random.choice(numbers)
        for number in itertools.chain(range(first, numbers.stop), range(numbers.start, first)):
            if len(self._sockets) == count:
                break
            candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                candidate.bind(("", number))
            except OSError:
                candidate.close()
            else:
                self._sockets.append(candidate)
        self.numbers: tuple[int, ...] = tuple(reserved.getsockname()[1] for reserved in self._sockets)
        if len(self.numbers) < count:
            self.release()
            raise LaunchError(
                f"the ranks of this machine need {count} free ports, but fewer of its ports {numbers.start} to "
                f"{numbers.stop - 1} are free. End programs that use them, or start fewer ranks"
            )

    def release(self) -> None:
        """Frees the ports, so that the ranks can listen on them."""
        for reserved in self._sockets:
            reserved.close()


def serve(coordinator: tuple[str, int] | None, store: Store, secret: bytes, job: str) -> KeyValueServer:
    """Serves node 0's store.

    Args:
      coordinator: The address at which other nodes look for the store; None: the job has one node, and the store is
        not reachable from other machines.
      store: The store to serve.
      secret: The secret of the launchers.
      job: The id of the job.

    Raises:
      LaunchError: The port is in use, or cannot be used.
    """
    host, port = coordinator or ("127.0.0.1", 0)
    # The server listens on all addresses, because the machine may resolve its own name differently than others do.
    bound = host if host == "localhost" or host.startswith("127.") else ""
    try:
        return KeyValueServer(bound, port, store, {"launch": secret, "tsps": launch_secret.of_ranks(secret, job)})
    except OSError as error:
        raise LaunchError(
            f"cannot serve the key-value store at {host}:{port}: {error.strerror}. Give --coordinator another port, "
            "the same on all machines",
            status=2,
        ) from None


def own_address(coordinator: tuple[str, int] | None) -> str:
    """Returns the address at which the coordinator, and so other machines, can reach this machine.

    Raises:
      LaunchError: The coordinator's name cannot be resolved, or no route leads to it.
    """
    if coordinator is None:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(coordinator)  # connecting a datagram socket sends nothing
        except OSError as error:
            raise LaunchError(
                f"--coordinator {coordinator[0]}:{coordinator[1]}: this machine cannot reach {coordinator[0]}: "
                f"{error.strerror}. Check the name and the network",
                status=2,
            ) from None
        return str(probe.getsockname()[0])


def named_address() -> str:
    """Returns the address to which this machine resolves its own name; "" if it cannot resolve it."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface that has an address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:15])
                packed = fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]
                if socket.inet_ntoa(packed) == address:
                    return name
    return "lo" if ipaddress.ip_address(address).is_loopback else None


class Meeting:
    """A launcher's part in the meeting.

    Attributes:
      texts: The texts of the launchers in node 0's store.
      job: The id of the job.
    """

    def __init__(
        self,
        node_rank: int,
        terms: Terms,
        coordinator: tuple[str, int],
        timeout_s: float,
        say: Callable[[str], None],
        store: Store | None,
        secret: bytes,
        job: str,
    ) -> None:
        """Prepares the meeting. On node 0, writes its terms to the store.

        Args:
          node_rank: The number of this launcher's node.
          terms: The terms of this launcher.
          coordinator: The address of node 0's store.
          timeout_s: The time that launchers wait for each other.
          say: Prints a line for the user.
          store: Node 0's store; None on other nodes.
          secret: The secret of the launchers.
          job: The id of the job. Node 0's id is used; other launchers read it from the store.
        """
        self._node_rank, self._terms, self._coordinator, self._timeout_s = node_rank, terms, coordinator, timeout_s
        self._say, self._store, self._awaited = say, store, ""
        self._client = Client(*coordinator, secret)
        self.texts: Texts = self._client if store is None else store
        self.job = job
        if store is not None:
            store.put("job", json.dumps({"id": self.job, **dataclasses.asdict(terms)}))

    def hold(self, node: Node, prepare: Callable[[list[Node]], None]) -> list[Node]:
        """Meets the other launchers.

        Args:
          node: The node of this launcher.
          prepare: A function that node 0 calls with all nodes before it publishes them.

        Returns:
          All nodes, in order.

        Raises:
          LaunchError: A launcher did not connect in time, or cannot take part.
        """
        deadline = time.monotonic() + self._timeout_s
        if self._store is not None:
            self._check_own_store()
        else:
            self._find_job(deadline)
        try:  # From here on, the other launchers may know this one, so it must tell them if it fails.
            if not self.texts.create(f"node-{self._node_rank}", node.text):
                raise self._duplicate()
            nodes = self._gather(deadline, prepare) if self._store is not None else self._wait(deadline)
            self._check_addresses(nodes)
        except BaseException as error:
            if isinstance(error, LaunchError):
                text, status = str(error), error.status
            else:
                text, status = f"the launcher of node {self._node_rank} was interrupted", 1
            self._abort(text, status)
            raise
        return nodes

    def _check_own_store(self) -> None:
        """Raises LaunchError if the coordinator's address belongs to another machine."""
        deadline, reason = time.monotonic() + _CHECK_S, ""
        while time.monotonic() < deadline:
            try:
                text = self._client.get("job")
                if text is not None and json.loads(text)["id"] == self.job:
                    return
                reason = "another launcher's store answers"
            except OSError as error:
                reason = _reason(error)
            time.sleep(_POLL_S)
        raise LaunchError(
            f"--coordinator {_name(self._coordinator)} does not lead to this machine ({reason}), but the launcher with "
            "--node-rank 0 must serve the key-value store there. Start it on the machine that --coordinator names",
            status=2,
        )

    def _find_job(self, deadline: float) -> None:
        """Waits for node 0's store, and checks node 0's terms."""
        reason = "it has not answered"
        for _ in self._polls(deadline):
            self._awaited = f"node rank 0 at {_name(self._coordinator)} ({reason})"
            try:
                text = self.texts.get("job")
            except WrongSecretError as error:
                raise LaunchError(
                    f"{error}. Another job may have the coordinator's port. If not, set {VARIABLE} to one value on all "
                    "machines of this job, or copy ~/.tf_sparse_ps/secret from one machine to the others",
                    status=2,
                ) from None
            except OSError as error:
                reason = _reason(error)
                continue
            if text is not None:
                fields = json.loads(text)
                self.job = fields.pop("id")
                try:
                    Terms(**fields).check(self._terms, self._node_rank)
                except LaunchError as error:
                    self._abort(str(error), error.status)
                    raise
                return
        raise LaunchError(
            f"node rank 0 did not connect within {self._timeout_s:g} s: no launcher answers at "
            f"{_name(self._coordinator)} ({reason}). Start the launcher with --node-rank 0 there, and check the network"
        )

    def _duplicate(self) -> LaunchError:
        first = Node.of(self.texts.get(f"node-{self._node_rank}") or "")
        return LaunchError(
            f"two launchers have --node-rank {self._node_rank}: one on {first.host}, with {first.ranks} ranks, and one "
            f"on {own_address(self._coordinator)}. Give each machine another number, 0 to {self._terms.nnodes - 1}",
            status=2,
        )

    def _gather(self, deadline: float, prepare: Callable[[list[Node]], None]) -> list[Node]:
        """Waits on node 0 for all launchers, and publishes their nodes."""
        for _ in self._polls(deadline):
            if not self._missing():
                nodes = [Node.of(self.texts.get(f"node-{k}") or "") for k in range(self._terms.nnodes)]
                prepare(nodes)
                self.texts.put("nodes", json.dumps([node.text for node in nodes]))
                return nodes
            self._raise_abort()
        raise self._timed_out()

    def _wait(self, deadline: float) -> list[Node]:
        """Waits on other nodes for node 0 to publish the nodes: longer than node 0, which reports missing launchers."""
        lost_at: float | None = None
        for _ in self._polls(deadline + _LOST_S):
            try:
                text = self.texts.get("nodes")
                if text is not None:
                    return [Node.of(node_text) for node_text in json.loads(text)]
                self._missing()
                self._raise_abort()
                lost_at = None
            except OSError as error:
                lost_at = lost_at or time.monotonic() + _LOST_S
                if time.monotonic() > lost_at:
                    raise LaunchError(
                        f"the launcher of node rank 0 at {_name(self._coordinator)} has ended ({_reason(error)}). Look "
                        "at its output, and start all launchers again"
                    ) from None
        raise self._timed_out()

    def _missing(self) -> list[int]:
        missing = [k for k in range(self._terms.nnodes) if self.texts.get(f"node-{k}") is None]
        self._awaited = f"node rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        return missing

    def _timed_out(self) -> LaunchError:
        return LaunchError(
            f"{self._awaited} of {self._terms.nnodes} did not connect within {self._timeout_s:g} s. Start "
            f"`tf-sparse-ps run --nnodes {self._terms.nnodes} --coordinator {_name(self._coordinator)}` on every "
            "machine, each with its own --node-rank"
        )

    def _check_addresses(self, nodes: list[Node]) -> None:
        loops = [ipaddress.ip_address(node.host).is_loopback for node in nodes]
        if any(loops) and not all(loops):
            k = loops.index(True)
            raise LaunchError(
                f"node rank {k} has the address {nodes[k].host}, at which other machines cannot reach it, because its "
                f"/etc/hosts has this address for {self._coordinator[0]!r}. Give --coordinator the address of node "
                "rank 0 instead of a name",
                status=2,
            )
        for k, node in enumerate(nodes):
            if node.named and ipaddress.ip_address(node.named).is_loopback and not any(loops):
                raise LaunchError(
                    f"on node rank {k} ({node.host}), the machine's own name resolves to {node.named}, where Horovod "
                    "on other machines cannot reach it. Give the name the machine's address in /etc/hosts there, or "
                    "use --collectives tensorflow",
                    status=2,
                )

    def _raise_abort(self) -> None:
        text = self.texts.get("abort")
        if text is not None:
            fields = json.loads(text)
            raise LaunchError(fields["text"], fields["status"])

    def _abort(self, text: str, status: int) -> None:
        with contextlib.suppress(OSError):
            self.texts.create("abort", json.dumps({"text": text, "status": status}))
            if self._store is not None:
                time.sleep(_ABORT_S)

    def _polls(self, deadline: float) -> Iterator[None]:
        """Yields until the deadline, at least once. Prints from time to time which launchers this one waits for."""
        next_reminder = time.monotonic() + _REMIND_S
        while True:
            yield
            now = time.monotonic()
            if now >= deadline:
                return
            if now > next_reminder:
                self._say(f"waiting for {self._awaited}")
                next_reminder = now + 4 * _REMIND_S
            time.sleep(min(_POLL_S, deadline - now))


def _name(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
