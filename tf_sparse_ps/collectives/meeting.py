"""`meet`: the processes that TF_CONFIG names find each other before TensorFlow connects them. Imports no TensorFlow.

TensorFlow waits an hour for a worker that does not start, and does not name it. So the ranks first meet over HTTP. Each
rank reports the cluster that its TF_CONFIG names, and rank 0 compares the reports. Then all ranks continue, or all
ranks learn what is wrong.

The ranks meet in the launcher's key-value store. Without a launcher, rank 0 keeps a store at another port. Rank 0 first
serves the number of this port at its address of TF_CONFIG, where TensorFlow's server listens afterwards.
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
from tf_sparse_ps.collectives.key_values import KeyValueStore, path_of
from tf_sparse_ps.errors import CollectivesError, RankLost

_POLL_S = 0.05
_LEAVE_S = 10.0  # the time that the other ranks may take to read the verdict of rank 0
_CONFIRM_S = 3.0  # the time for which a rank tries to tell rank 0 that it has read the verdict
_MOST_NAMED = 5
_MEMBER, _STORE, _VERDICT, _READ = "member", "store", "meeting", "read"
_GO = "go"


def meet(cluster: ClusterConfig, timeout_s: float) -> tuple[KeyValueStore, KeyValueServer | None]:
    """Waits until all ranks have reported the same cluster.

    Args:
      cluster: The cluster of this process.
      timeout_s: The time that ranks wait for each other.

    Returns:
      The job's key-value store, and its server if this process keeps the store.

    Raises:
      RankLost: Ranks did not connect in time, or have another cluster. The message names them.
      CollectivesError: The port of this rank is in use.
    """
    deadline = time.monotonic() + timeout_s
    store, server = KeyValueStore.of_launcher(), None
    if store.there:
        silence = "the launcher's key-value store did not answer"
        _report(store, cluster, deadline, timeout_s, silence, _port_problem(cluster))
        _agree(store, cluster, deadline, timeout_s)
        return store, None
    host, port = _parts(cluster.addresses[0])
    # Without a secret, the store trusts other machines, as TensorFlow's server at this address does. It never trusts
    # other users of this machine.
    secret = signed_requests.of_environment()
    if cluster.rank == 0:
        server, values = KeyValueServer("", 0, Values(), {"tsps": secret}), Values()
        values.set(path_of(_STORE), str(server.port).encode(), only_new=False)
        with contextlib.closing(_listen(cluster, values)) as meeting_server:
            store = KeyValueStore(("127.0.0.1", meeting_server.port), secret=secret)
            _report(store, cluster, deadline, timeout_s, "the server of this rank did not answer", "")
            try:
                _agree(store, cluster, deadline, timeout_s)
            finally:
                readers = [r for r in range(1, cluster.size) if values.value(path_of(f"{_MEMBER}.{r}"))]
                read = [path_of(f"{_READ}.{r}") for r in readers]
                _wait_until(lambda: all(values.value(path) for path in read), time.monotonic() + _LEAVE_S)
        return KeyValueStore(("127.0.0.1", server.port), secret=secret), server
    store = KeyValueStore((host, port), secret=secret)
    silence = f"rank 0 did not answer at {cluster.addresses[0]}"
    _report(store, cluster, deadline, timeout_s, silence, _port_problem(cluster))
    _agree(store, cluster, deadline, timeout_s)
    store_port = _read(store, _STORE, time.monotonic() + _LEAVE_S)
    if not store_port:
        raise _no_answer(cluster, timeout_s)
    _confirm(store, cluster)
    return KeyValueStore((host, int(store_port)), keeper="rank 0", secret=secret), None


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(cluster: ClusterConfig, values: Values) -> KeyValueServer:
    try:
        return KeyValueServer("", _parts(cluster.addresses[0])[1], values, {"tsps": signed_requests.of_environment()})
    except OSError as error:
        raise _port_error(cluster, error) from error


def _port_error(cluster: ClusterConfig, error: OSError) -> CollectivesError:
    return CollectivesError(
        f"rank {cluster.rank} cannot listen at {cluster.addresses[cluster.rank]}, its address in {VARIABLE}: "
        f"{error.strerror or error}. Another process may use the port, for example one of an earlier job. End that "
        f"process, or change the port in {VARIABLE} on all ranks"
    )


def _port_problem(cluster: ClusterConfig) -> str:
    """Returns what is wrong with this rank's port; "" if the port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", _parts(cluster.addresses[cluster.rank])[1]))
        except OSError as error:
            return str(_port_error(cluster, error))
    return ""


def _report(
    store: KeyValueStore, cluster: ClusterConfig, deadline: float, timeout_s: float, silence: str, problem: str
) -> None:
    """Writes this rank's cluster to the store.

    Args:
      store: The store in which the ranks meet.
      cluster: The cluster of this rank.
      deadline: The time until which to try.
      timeout_s: The time that ranks wait for each other, for the message.
      silence: A clause for the message if the store does not answer.
      problem: The problem of this rank, in words; "" without one.
    """
    report = json.dumps({"addresses": cluster.addresses, "wrong": problem})
    if not _wait_until(lambda: store.write(f"{_MEMBER}.{cluster.rank}", report), deadline):
        raise RankLost(
            f"rank {cluster.rank} of {cluster.size}: within {timeout_s:g} s, {silence}. Start all ranks within this "
            "time, or set TFSPS_TIMEOUT_S to more seconds"
        )


def _agree(store: KeyValueStore, cluster: ClusterConfig, deadline: float, timeout_s: float) -> None:
    """Waits for rank 0's verdict: whether all ranks have reported, and with the same cluster."""
    if cluster.rank == 0:
        reports: dict[int, str] = {}

        def all_reported() -> bool:
            for r in range(cluster.size):
                if r not in reports and (text := store.read(f"{_MEMBER}.{r}")):
                    reports[r] = text
            return len(reports) == cluster.size or _difference(cluster, reports) != ""

        complete = _wait_until(all_reported, deadline)
        verdict = _difference(cluster, reports)
        if complete and not verdict:
            verdict = _GO
        elif not verdict:
            missing = [f"rank {r} at {cluster.addresses[r]}" for r in range(cluster.size) if r not in reports]
            more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            verdict = (
                f"{', '.join(missing[:_MOST_NAMED])}{more} did not connect within {timeout_s:g} s. Look at the output "
                "of these ranks. If they need longer to start, set TFSPS_TIMEOUT_S to more seconds"
            )
        _wait_until(lambda: store.write(_VERDICT, verdict), time.monotonic() + _LEAVE_S)
    else:
        # The wait is longer than that of rank 0, which knows the missing ranks.
        verdict = _read(store, _VERDICT, deadline + _LEAVE_S)
        if not verdict:
            raise _no_answer(cluster, timeout_s)
        if verdict != _GO:
            _confirm(store, cluster)
    if verdict != _GO:
        raise RankLost(f"rank {cluster.rank} of {cluster.size}: {verdict}")


def _confirm(store: KeyValueStore, cluster: ClusterConfig) -> None:
    """Tells rank 0 that this rank needs nothing more from the server at rank 0's address."""
    _wait_until(lambda: store.write(f"{_READ}.{cluster.rank}", "yes"), time.monotonic() + _CONFIRM_S)


def _no_answer(cluster: ClusterConfig, timeout_s: float) -> RankLost:
    return RankLost(
        f"rank {cluster.rank} of {cluster.size}: rank 0, at {cluster.addresses[0]}, did not report within "
        f"{timeout_s:g} s whether all ranks have connected. Look at the output of rank 0"
    )


def _difference(cluster: ClusterConfig, reports: dict[int, str]) -> str:
    """Returns the first problem of a rank, or the first difference from rank 0's cluster; "" without either."""
    for rank, text in sorted(reports.items()):
        report = json.loads(text)
        if report["wrong"]:
            return str(report["wrong"])
        if tuple(report["addresses"]) != cluster.addresses:
            return (
                f"{VARIABLE} differs between ranks: rank 0 has {list(cluster.addresses)}, rank {rank} has "
                f"{report['addresses']}. Give all ranks the same cluster"
            )
    return ""


def _read(store: KeyValueStore, key: str, deadline: float) -> str:
    """Polls until a key has a text. Returns the text, or "" if the deadline passes first.

    One request is not enough: on a busy machine, the store may answer too late.
    """
    while not (text := store.read(key)) and time.monotonic() <= deadline:
        time.sleep(_POLL_S)
    return text


def _wait_until(done: Callable[[], bool], deadline: float) -> bool:
    """Polls until `done` returns True. Returns False if the deadline passes first."""
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
