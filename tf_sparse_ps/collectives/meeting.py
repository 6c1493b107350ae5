"""How processes that TF_CONFIG names find each other before TensorFlow connects them. Needs no TensorFlow.

TensorFlow waits for a worker that does not come for an hour, and does not say for whom. So the ranks meet before, over
HTTP: each says which cluster it was told of, rank 0 compares, and either all go on or all learn what is wrong.

They meet in the launcher's key-value store. Without a launcher rank 0 keeps one, at a port of its own. The others learn
where at the address that TF_CONFIG gives rank 0, at which TensorFlow's server will listen afterwards.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable

from tf_sparse_ps.collectives import signed_requests
from tf_sparse_ps.collectives.cluster_config import VARIABLE, ClusterConfig
from tf_sparse_ps.collectives.key_value_server import KeyValueServer, Values
from tf_sparse_ps.collectives.key_values import KeyValueStore
from tf_sparse_ps.errors import CollectivesError, RankLost

_POLL_S = 0.05
_LEAVE_S = 10.0  # for the others to read what rank 0 has found
_MOST_NAMED = 5
_MEMBER, _STORE, _VERDICT, _READ = "member", "store", "meeting", "read"
_GO = "go"


def meet(cluster: ClusterConfig, timeout_s: float) -> tuple[KeyValueStore, KeyValueServer | None]:
    """Returns when all ranks are there.

    Args:
      cluster: What this process was told.
      timeout_s: How long ranks wait for each other.

    Returns:
      The job's key-value store, and the server behind it if this process is the one that keeps it.

    Raises:
      RankLost: Ranks did not come, or were told of another cluster, with which.
      CollectivesError: The port of this rank is taken.
    """
    deadline = time.monotonic() + timeout_s
    store, server = KeyValueStore.of_launcher(), None
    if store.there:
        _say(store, cluster, deadline, timeout_s, "the launcher's key-value store does not answer", _own_port(cluster))
        _agree(store, cluster, deadline, timeout_s)
        return store, None
    host, port = _parts(cluster.addresses[0])
    # Without it other machines are trusted, as by TensorFlow's own server at this address; other local users never are.
    secret = signed_requests.of_environment()
    if cluster.rank == 0:
        server = KeyValueServer("", 0, Values(), {"tsps": secret})
        with contextlib.closing(_listen(cluster)) as door:
            store = KeyValueStore(("127.0.0.1", door.port), secret=secret)
            store.write(_STORE, str(server.port))
            _say(store, cluster, deadline, timeout_s, "its own server does not answer", "")
            try:
                _agree(store, cluster, deadline, timeout_s)
            finally:
                others = [r for r in range(1, cluster.size) if store.read(f"{_MEMBER}.{r}")]
                _until(lambda: all(store.read(f"{_READ}.{r}") for r in others), time.monotonic() + _LEAVE_S)
        return KeyValueStore(("127.0.0.1", server.port), secret=secret), server
    store = KeyValueStore((host, port), secret=secret)
    _say(store, cluster, deadline, timeout_s, f"rank 0 does not come to {cluster.addresses[0]}", _own_port(cluster))
    _agree(store, cluster, deadline, timeout_s)
    kept_at = store.read(_STORE)
    store.write(f"{_READ}.{cluster.rank}", "yes")
    return KeyValueStore((host, int(kept_at)), keeper="rank 0", secret=secret), None


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(cluster: ClusterConfig) -> KeyValueServer:
    try:
        return KeyValueServer("", _parts(cluster.addresses[0])[1], Values(), {"tsps": signed_requests.of_environment()})
    except OSError as error:
        raise _taken(cluster, error) from error


def _taken(cluster: ClusterConfig, error: OSError) -> CollectivesError:
    return CollectivesError(
        f"rank {cluster.rank} cannot listen at {cluster.addresses[cluster.rank]}, which {VARIABLE} gives it: "
        f"{error.strerror or error}. Another process, of an earlier job for example, may have the port"
    )


def _own_port(cluster: ClusterConfig) -> str:
    """What is wrong with this rank's port; "": it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", _parts(cluster.addresses[cluster.rank])[1]))
        except OSError as error:
            return str(_taken(cluster, error))
    return ""


def _say(
    store: KeyValueStore, cluster: ClusterConfig, deadline: float, timeout_s: float, otherwise: str, wrong: str
) -> None:
    """Says which cluster this rank was told of, and what is wrong with it."""
    said = json.dumps({"addresses": cluster.addresses, "wrong": wrong})
    if not _until(lambda: store.write(f"{_MEMBER}.{cluster.rank}", said), deadline):
        raise RankLost(f"rank {cluster.rank} of {cluster.size}: within {timeout_s:g} s {otherwise}")


def _agree(store: KeyValueStore, cluster: ClusterConfig, deadline: float, timeout_s: float) -> None:
    """Returns when all ranks are there and were told of one cluster: rank 0 finds out, and all learn it."""
    if cluster.rank == 0:
        said: dict[int, str] = {}

        def all_came() -> bool:
            for r in range(cluster.size):
                if r not in said and (text := store.read(f"{_MEMBER}.{r}")):
                    said[r] = text
            return len(said) == cluster.size or _difference(cluster, said) != ""

        came = _until(all_came, deadline)
        verdict = _difference(cluster, said)
        if not came and not verdict:
            missing = [f"rank {r} at {cluster.addresses[r]}" for r in range(cluster.size) if r not in said]
            more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            verdict = f"{', '.join(missing[:_MOST_NAMED])}{more} did not come within {timeout_s:g} s"
        store.write(_VERDICT, verdict or _GO)
    else:
        # A moment more than rank 0 waits, which knows who is missing.
        if not _until(lambda: store.read(_VERDICT) != "", deadline + _LEAVE_S):
            raise RankLost(
                f"rank {cluster.rank} of {cluster.size}: rank 0, at {cluster.addresses[0]}, has not said within "
                f"{timeout_s:g} s that all are there"
            )
        verdict = store.read(_VERDICT)
        if verdict != _GO:
            store.write(f"{_READ}.{cluster.rank}", "yes")
    if verdict not in ("", _GO):
        raise RankLost(f"rank {cluster.rank} of {cluster.size}: {verdict}")


def _difference(cluster: ClusterConfig, said: dict[int, str]) -> str:
    for rank, text in sorted(said.items()):
        other = json.loads(text)
        if other["wrong"]:
            return str(other["wrong"])
        if tuple(other["addresses"]) != cluster.addresses:
            return (
                f"{VARIABLE} differs between ranks: rank 0 was told of {list(cluster.addresses)}, rank {rank} of "
                f"{other['addresses']}"
            )
    return ""


def _until(done: Callable[[], bool], deadline: float) -> bool:
    """Asks again and again; whether it was done in time."""
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
