"""How the launchers of a job meet: each writes what its node has to the store of node 0, and waits for all others.

job        what is to be the same on all: written by node 0 before it serves
node-<k>   a `Node`, created by launcher k: a second launcher with this number is refused
nodes      all of them, written by node 0 when they have come
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
_CHECK_S = 5.0  # in which node 0 must reach its own store
_LOST_S = 5.0  # without an answer, after the first
_REMIND_S = 15.0
_LOWEST_PORT = 10_000  # of a rank
_SIOCGIFADDR = 0x8915


@dataclasses.dataclass(frozen=True)
class Node:
    """What a launcher says of its node.

    Attributes:
      host: Its address for the other nodes.
      ranks: How many it has.
      ports: Of its ranks, for tf.distribute; none with Horovod.
      rendezvous: Port of Horovod's rendezvous server, of node 0 with Horovod; else 0.
      named: The address that the machine's own name leads to, with Horovod, whose ranks tell it each other; else "".
    """

    host: str
    ranks: int
    ports: tuple[int, ...] = ()
    rendezvous: int = 0
    named: str = ""

    @classmethod
    def of(cls, text: str) -> Node:
        """The inverse of `text`."""
        found = json.loads(text)
        return cls(**found | {"ports": tuple(found["ports"])})

    @property
    def text(self) -> str:
        """To be sent."""
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Terms:
    """What must be the same for all launchers of a job.

    Attributes:
      nnodes: How many there are.
      collectives: What ranks communicate by.
    """

    nnodes: int
    collectives: str

    def check(self, own: Terms, node_rank: int) -> None:
        """Raises LaunchError if launcher `node_rank`'s own terms differ from these, node 0's."""
        if own.nnodes != self.nnodes:
            raise LaunchError(
                f"the launchers were started with different --nnodes: {self.nnodes} with --node-rank 0, {own.nnodes} "
                f"with --node-rank {node_rank}",
                status=2,
            )
        if own.collectives != self.collectives:
            raise LaunchError(
                f"the launchers have chosen different collectives: {self.collectives} with --node-rank 0, "
                f"{own.collectives} with --node-rank {node_rank}. Give --collectives on all, or install Horovod on all",
                status=2,
            )


def _unassigned_ports() -> range:
    """Ports that the kernel gives to no outgoing connection: another's could take one before a rank listens there."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = 32768
    return range(_LOWEST_PORT, lowest) if lowest - _LOWEST_PORT >= 1000 else range(1024, 1 << 16)


class Ports:
    """Free ports of this machine, kept from others until `release`."""

    def __init__(self, count: int) -> None:
        """Takes so many, that are free with all of the machine's addresses.

        Raises:
          LaunchError: There are not so many.
        """
        self._sockets: list[socket.socket] = []
        numbers = _unassigned_ports()
        first = random.choice(numbers)
        for number in itertools.chain(range(first, numbers.stop), range(numbers.start, first)):
            if len(self._sockets) == count:
                break
            one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                one.bind(("", number))
            except OSError:
                one.close()
            else:
                self._sockets.append(one)
        self.numbers: tuple[int, ...] = tuple(one.getsockname()[1] for one in self._sockets)
        if len(self.numbers) < count:
            self.release()
            raise LaunchError(f"of this machine's ports {numbers.start} to {numbers.stop - 1}, {count} are not free")

    def release(self) -> None:
        """Frees them, for the ranks."""
        for one in self._sockets:
            one.close()


def serve(coordinator: tuple[str, int] | None, store: Store, secret: bytes, job: str) -> KeyValueServer:
    """Serves node 0's store.

    Args:
      coordinator: Where the other nodes look for it; None: there are none, and nobody else can reach it.
      store: What to serve.
      secret: Of the launchers.
      job: The id of the job.

    Raises:
      LaunchError: The port is taken, or cannot be used.
    """
    host, port = coordinator or ("127.0.0.1", 0)
    # On all addresses otherwise: a machine's own name may lead to another one than others see it by.
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
    """The address of this machine by which the coordinator's, and so others', can reach it.

    Raises:
      LaunchError: The coordinator's name is not known, or there is no way to it.
    """
    if coordinator is None:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(coordinator)  # of datagrams: nothing is sent
        except OSError as error:
            raise LaunchError(
                f"--coordinator {coordinator[0]}:{coordinator[1]}: no way to {coordinator[0]}: {error.strerror}",
                status=2,
            ) from None
        return str(probe.getsockname()[0])


def named_address() -> str:
    """The address that this machine's own name leads to; "" if it leads nowhere."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def interface_of(address: str) -> str | None:
    """The network interface that has an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]
                if socket.inet_ntoa(found) == address:
                    return name
    return "lo" if ipaddress.ip_address(address).is_loopback else None


class Meeting:
    """A launcher's part in it."""

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
        """Before it begins.

        Args:
          node_rank: This launcher's number.
          terms: As this launcher has them.
          coordinator: Where node 0's store is.
          timeout_s: How long launchers wait for each other.
          say: Prints a line for the user.
          store: Node 0's; None on other nodes.
          secret: Of the launchers.
          job: The id of the job, as node 0 has drawn it; other nodes learn it.
        """
        self._me, self._terms, self._coordinator, self._timeout_s = node_rank, terms, coordinator, timeout_s
        self._say, self._store, self._waits_for = say, store, ""
        self._client = Client(*coordinator, secret)
        self.texts: Texts = self._client if store is None else store
        self.job = job
        if store is not None:
            store.put("job", json.dumps({"id": self.job, **dataclasses.asdict(terms)}))

    def hold(self, node: Node, prepare: Callable[[list[Node]], None]) -> list[Node]:
        """Meets the other launchers.

        Args:
          node: This launcher's.
          prepare: What node 0 has to do with all nodes before the others hear of them.

        Returns:
          All nodes, in their order.

        Raises:
          LaunchError: Somebody did not come, or cannot take part.
        """
        deadline = time.monotonic() + self._timeout_s
        if self._store is not None:
            self._check_own_store()
        else:
            self._find_job(deadline)
        try:  # from here on the others may know of this launcher
            if not self.texts.create(f"node-{self._me}", node.text):
                raise self._second()
            nodes = self._gather(deadline, prepare) if self._store is not None else self._wait(deadline)
            self._check_addresses(nodes)
        except BaseException as error:
            text = str(error) if isinstance(error, LaunchError) else f"the launcher of node {self._me} was interrupted"
            self._abort(text, error.status if isinstance(error, LaunchError) else 1)
            raise
        return nodes

    def _check_own_store(self) -> None:
        """Raises LaunchError if the coordinator's address leads to another machine."""
        deadline, why = time.monotonic() + _CHECK_S, ""
        while time.monotonic() < deadline:
            try:
                found = self._client.get("job")
                if found is not None and json.loads(found)["id"] == self.job:
                    return
                why = "another launcher's store answers"
            except OSError as error:
                why = _reason(error)
            time.sleep(_POLL_S)
        raise LaunchError(
            f"--coordinator {_name(self._coordinator)} does not lead to this machine ({why}), which serves the "
            "key-value store: --node-rank 0 must be started on the machine that --coordinator names",
            status=2,
        )

    def _find_job(self, deadline: float) -> None:
        """Waits for node 0's store, and checks its terms."""
        why = "it has not answered"
        for _ in self._polls(deadline):
            self._waits_for = f"node rank 0 at {_name(self._coordinator)} ({why})"
            try:
                text = self.texts.get("job")
            except WrongSecretError as error:
                raise LaunchError(
                    f"{error}. Another job may have the coordinator's port. If not, set {VARIABLE} to one value on all "
                    "machines of this job, or copy ~/.tf_sparse_ps/secret from one machine to the others",
                    status=2,
                ) from None
            except OSError as error:
                why = _reason(error)
                continue
            if text is not None:
                found = json.loads(text)
                self.job = found.pop("id")
                try:
                    Terms(**found).check(self._terms, self._me)
                except LaunchError as error:
                    self._abort(str(error), error.status)
                    raise
                return
        raise LaunchError(
            f"node rank 0 did not come within {self._timeout_s:g} s: no launcher answers at {_name(self._coordinator)} "
            f"({why})"
        )

    def _second(self) -> LaunchError:
        first = Node.of(self.texts.get(f"node-{self._me}") or "")
        return LaunchError(
            f"two launchers have --node-rank {self._me}: one on {first.host}, of {first.ranks} ranks, and one on "
            f"{own_address(self._coordinator)}. Each machine needs a number of its own, 0 to {self._terms.nnodes - 1}",
            status=2,
        )

    def _gather(self, deadline: float, prepare: Callable[[list[Node]], None]) -> list[Node]:
        """Node 0's part: waits for all, and tells them who came."""
        for _ in self._polls(deadline):
            if not self._missing():
                nodes = [Node.of(self.texts.get(f"node-{k}") or "") for k in range(self._terms.nnodes)]
                prepare(nodes)
                self.texts.put("nodes", json.dumps([one.text for one in nodes]))
                return nodes
            self._raise_abort()
        raise self._timed_out()

    def _wait(self, deadline: float) -> list[Node]:
        """The part of other launchers. They wait longer than node 0, which says who is missing."""
        lost: float | None = None
        for _ in self._polls(deadline + _LOST_S):
            try:
                text = self.texts.get("nodes")
                if text is not None:
                    return [Node.of(one) for one in json.loads(text)]
                self._missing()
                self._raise_abort()
                lost = None
            except OSError as error:
                lost = lost or time.monotonic() + _LOST_S
                if time.monotonic() > lost:
                    raise LaunchError(
                        f"the launcher of node rank 0 at {_name(self._coordinator)} is gone ({_reason(error)})"
                    ) from None
        raise self._timed_out()

    def _missing(self) -> list[int]:
        missing = [k for k in range(self._terms.nnodes) if self.texts.get(f"node-{k}") is None]
        self._waits_for = f"node rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        return missing

    def _timed_out(self) -> LaunchError:
        return LaunchError(
            f"{self._waits_for} of {self._terms.nnodes} did not come within {self._timeout_s:g} s. Start "
            f"`tf-sparse-ps run --nnodes {self._terms.nnodes} --coordinator {_name(self._coordinator)}` on every "
            "machine, each with its own --node-rank"
        )

    def _check_addresses(self, nodes: list[Node]) -> None:
        loops = [ipaddress.ip_address(node.host).is_loopback for node in nodes]
        if any(loops) and not all(loops):
            k = loops.index(True)
            raise LaunchError(
                f"node rank {k} knows itself as {nodes[k].host}, by which other machines cannot reach it: its "
                f"/etc/hosts has {self._coordinator[0]!r} there. Give --coordinator the address of node rank 0 in "
                "place of a name",
                status=2,
            )
        for k, node in enumerate(nodes):
            if node.named and ipaddress.ip_address(node.named).is_loopback and not any(loops):
                raise LaunchError(
                    f"the name of node rank {k}'s machine ({node.host}) leads to {node.named} there, where Horovod "
                    "on the other machines looks for it in vain. Give the name the machine's address in /etc/hosts, or "
                    "use --collectives tensorflow",
                    status=2,
                )

    def _raise_abort(self) -> None:
        text = self.texts.get("abort")
        if text is not None:
            found = json.loads(text)
            raise LaunchError(found["text"], found["status"])

    def _abort(self, text: str, status: int) -> None:
        with contextlib.suppress(OSError):
            self.texts.create("abort", json.dumps({"text": text, "status": status}))
            if self._store is not None:
                time.sleep(2 * _POLL_S)  # the others read it

    def _polls(self, deadline: float) -> Iterator[None]:
        """Until the deadline; says at times whom this launcher waits for."""
        remind = time.monotonic() + _REMIND_S
        while (now := time.monotonic()) < deadline:
            yield
            if now > remind:
                self._say(f"waiting for {self._waits_for}")
                remind = now + 4 * _REMIND_S
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))


def _name(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
