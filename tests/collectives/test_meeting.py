"""The ranks of TF_CONFIG meet before TensorFlow connects them. They learn which rank is missing and what differs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from tf_sparse_ps.collectives import key_value_server, key_values, meeting
from tf_sparse_ps.collectives.cluster_config import ClusterConfig
from tf_sparse_ps.collectives.key_value_server import KeyValueServer, Values
from tf_sparse_ps.collectives.key_values import KeyValueStore
from tf_sparse_ps.errors import CollectivesError, RankLost

LONG_S, SHORT_S = 30.0, 1.5  # SHORT_S ends every test that waits in vain


def addresses(ranks: int) -> tuple[str, ...]:
    """Returns addresses with free ports."""
    probes = [socket.socket() for _ in range(ranks)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    free = tuple(f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes)
    for probe in probes:
        probe.close()
    return free


def meet(clusters: list[ClusterConfig], timeout_s: float, late: int | None = None) -> list[Any]:
    """Returns the result or the error of each rank."""
    results: list[Any] = [None] * len(clusters)

    def rank(position: int) -> None:
        if position == late:
            time.sleep(0.5)
        try:
            results[position] = meeting.meet(clusters[position], timeout_s)
        except Exception as error:
            results[position] = error

    threads = [threading.Thread(target=rank, args=(position,)) for position in range(len(clusters))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG_S)
    return results


@pytest.fixture(params=["rank 0", "launcher"], autouse=True)
def keeper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process that serves the store in which the ranks meet."""
    monkeypatch.delenv("TFSPS_KEY_VALUES", raising=False)
    if request.param == "rank 0":
        yield request.param
        return
    server = KeyValueServer("127.0.0.1", 0, Values(), {"tsps": b""})
    monkeypatch.setenv("TFSPS_KEY_VALUES", f"127.0.0.1:{server.port}")
    yield request.param
    server.close()


@pytest.mark.parametrize("late", [None, 0, 2])
def test_all_go_on_when_all_are_there(keeper: str, late: int | None) -> None:
    everyone = addresses(3)
    results = meet([ClusterConfig(everyone, r) for r in range(3)], LONG_S, late)
    stores = [store for store, _ in results]
    assert stores[1].write("greeting", "good morning")
    assert [store.read("greeting") for store in stores] == ["good morning"] * 3
    servers = [server for _, server in results if server]
    assert len(servers) == (keeper == "rank 0")
    for address in everyone:  # the next servers at these addresses are TensorFlow's
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", int(address.rpartition(":")[2])))
    for server in servers:
        server.close()
        assert stores[2].reason().startswith("rank 0 does not answer")
        assert stores[2].certain_reason() == stores[2].reason()


@pytest.mark.parametrize("agreed", [True, False])
def test_a_store_that_answers_each_request_late_once_delays_the_ranks(
    monkeypatch: pytest.MonkeyPatch, agreed: bool
) -> None:
    """A busy machine delays a thread by more than the timeout of a request."""
    monkeypatch.setattr(key_values, "_TIMEOUT_S", 0.3)
    answer, seen, lock = key_value_server._Handler._answer, set(), threading.Lock()

    def answer_late(handler: Any, status: HTTPStatus, body: bytes = b"") -> None:
        request = (handler.command, handler.path, body)
        with lock:
            new, _ = request not in seen, seen.add(request)
        if new:
            time.sleep(0.6)
        answer(handler, status, body)

    monkeypatch.setattr(key_value_server._Handler, "_answer", answer_late)
    everyone = addresses(3)
    clusters = [everyone, everyone if agreed else everyone[:2], everyone]
    results = meet([ClusterConfig(cluster, r) for r, cluster in enumerate(clusters)], LONG_S)
    assert {method for method, _, _ in seen} == {"GET", "PUT"}
    for result in results:
        if agreed:
            assert not isinstance(result, Exception), result
            store, server = result
            assert server is None or server.port == store._address[1]
        else:
            assert "TF_CONFIG differs between ranks" in str(result)
    for server in [result[1] for result in results if agreed and result[1]]:
        server.close()


def test_who_does_not_come_is_named_to_those_who_wait() -> None:
    everyone = addresses(4)
    results = meet([ClusterConfig(everyone, r) for r in (0, 2)], SHORT_S)
    for error in results:
        assert isinstance(error, RankLost)
        assert f"rank 1 at {everyone[1]}, rank 3 at {everyone[3]} did not connect within 1.5 s" in str(error)


def test_a_rank_0_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_LEAVE_S", 0.2)
    everyone = addresses(2)
    (error,) = meet([ClusterConfig(everyone, 1)], SHORT_S)
    assert isinstance(error, RankLost)
    assert "rank 0" in str(error)
    assert everyone[0] in str(error)


def test_a_cluster_that_differs_is_named_with_both_at_once() -> None:
    everyone = addresses(3)
    began = time.monotonic()
    results = meet([ClusterConfig(everyone, 0), ClusterConfig(everyone[:2], 1), ClusterConfig(everyone, 2)], LONG_S)
    for error in results:
        assert isinstance(error, RankLost)
        assert f"TF_CONFIG differs between ranks: rank 0 has {list(everyone)}, rank 1 has" in str(error)
    assert time.monotonic() < began + LONG_S / 2


@pytest.mark.parametrize("taken", [0, 1])
def test_a_port_that_is_taken_is_named_with_its_rank(taken: int, keeper: str) -> None:
    everyone = addresses(2)
    with socket.socket() as occupant:
        occupant.bind(("127.0.0.1", int(everyone[taken].rpartition(":")[2])))
        occupant.listen()
        results = meet([ClusterConfig(everyone, r) for r in range(2)], SHORT_S)
    assert f"rank {taken} cannot listen at {everyone[taken]}" in str(results[taken])
    assert isinstance(results[taken], CollectivesError if taken == 0 and keeper == "rank 0" else RankLost)
    assert isinstance(results[1 - taken], RankLost)


def test_a_store_refuses_texts_without_measure() -> None:
    server = KeyValueServer("127.0.0.1", 0, Values(), {"tsps": b""})
    store = KeyValueStore(("127.0.0.1", server.port))
    store.write("long", "x" * (20 << 20))
    assert store.read("long") == ""
    assert store.write("short", "x")
    assert store.read("short") == "x"
    server.close()
    assert not store.write("short", "y")
    assert store.read("short") == ""
