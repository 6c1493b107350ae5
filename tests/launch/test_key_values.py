"""The key-value store: its answers, and which clients get them."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from launcher import free_port, until

from tf_sparse_ps.collectives import key_value_server, key_values, signed_requests
from tf_sparse_ps.collectives.key_value_server import KeyValueServer
from tf_sparse_ps.collectives.key_values import KeyValueStore
from tf_sparse_ps.errors import WrongSecretError
from tf_sparse_ps.launch.key_values import Client, Store

LAUNCHERS, RANKS = b"of launchers", b"of ranks"
SECRETS = {"launch": LAUNCHERS, "tsps": RANKS, "scope": b""}  # requests of the last scope are not signed


@pytest.fixture
def server() -> Iterator[KeyValueServer]:
    key_values = KeyValueServer("127.0.0.1", 0, Store(), SECRETS)
    yield key_values
    key_values.close()


class KeyValueServerContext:
    """A server, which is closed at the end of the block."""

    def __init__(self, secrets: dict[str, bytes]) -> None:
        self._server = KeyValueServer("127.0.0.1", 0, Store(), secrets)

    def __enter__(self) -> KeyValueServer:
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.close()


def can(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError:
        return False
    return True


def request(
    server: KeyValueServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_what_is_put_is_got(server: KeyValueServer) -> None:
    assert request(server, "GET", "/scope/key") == (404, b"")
    assert request(server, "PUT", "/scope/key", b"\x00value") == (200, b"")
    assert request(server, "GET", "/scope/key") == (200, b"\x00value")
    assert request(server, "GET", "/other/key")[0] == 404
    assert request(server, "PUT", "/scope/key", b"") == (200, b"")
    assert request(server, "GET", "/scope/key") == (200, b"")


def test_a_keeper_that_only_does_not_answer_is_not_certainly_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as busy:  # it accepts connections, and does not read
        store = KeyValueStore(busy.getsockname(), keeper="rank 0")
        assert store.reason().startswith("rank 0 does not answer")
        assert store.certain_reason() == ""
    assert store.certain_reason().startswith("rank 0 does not answer")


def test_ranks_use_it_as_they_use_horovods(server: KeyValueServer) -> None:
    store = KeyValueStore(("127.0.0.1", server.server_port), secret=RANKS)
    assert store.read("key") == ""
    store.write("key", "einsÄ")
    store.write_first("key", "two")
    assert store.read("key") == "einsÄ"
    assert server.values.value("/tsps/key") == "einsÄ".encode()


def test_of_several_that_create_one_is_the_first(server: KeyValueServer) -> None:
    client = Client("127.0.0.1", server.server_port, LAUNCHERS, timeout_s=10)
    with ThreadPoolExecutor(16) as pool:
        created = list(pool.map(lambda i: client.create("key", str(i)), range(64)))
    assert sum(created) == 1
    assert client.get("key") == str(created.index(True))
    assert client.get("other") is None
    client.put("key", "after")
    assert server.values.value("/launch/key") == b"after"
    assert not client.create("key", "too late")


def test_what_makes_no_sense_is_refused(server: KeyValueServer) -> None:
    assert request(server, "PUT", "/scope/key", b"x", Content_Length=str(1 << 40))[0] == 413
    assert request(server, "DELETE", "/scope/key")[0] == 501
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(b"PUT /scope/key HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert b"400" in connection.recv(1000)
    assert request(server, "GET", "/scope/key")[0] == 404


def test_a_store_that_is_not_there_is_an_error_to_launchers_and_empty_to_ranks() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        Client("127.0.0.1", port, LAUNCHERS).get("key")
    assert KeyValueStore(("127.0.0.1", port)).read("key") == ""


def test_what_answers_and_is_no_store_is_an_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with ThreadPoolExecutor(1) as pool:

            def answer() -> None:
                connection, _ = listener.accept()
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")
                connection.close()

            done = pool.submit(answer)
            with pytest.raises(ConnectionError):
                Client("127.0.0.1", listener.getsockname()[1], LAUNCHERS).get("key")
            done.result(10)


def test_it_ends_with_its_job() -> None:
    server = KeyValueServer("127.0.0.1", 0, Store(), SECRETS)
    port = server.server_port
    server.close()
    with pytest.raises(ConnectionRefusedError):
        Client("127.0.0.1", port, LAUNCHERS).get("key")
    again = KeyValueServer("127.0.0.1", port, Store(), SECRETS)
    again.close()


def held(server: KeyValueServer, n: int) -> None:
    """Waits until a server serves n connections."""
    until(lambda: len(server._connections) == n, 10)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that close wait for their threads as long as a busy machine delays these."""
    monkeypatch.setattr(key_value_server, "_CLOSE_S", 20.0)


@pytest.mark.usefixtures("patient")
def test_it_closes_connections_at_its_end() -> None:
    """A client that has sent nothing, or part of a request, learns at once that nothing follows."""
    server = KeyValueServer("127.0.0.1", 0, Store(), SECRETS)
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(2)]
    connections[1].sendall(b"GET /scope/k")
    held(server, 2)
    began = time.monotonic()
    server.close()
    for connection in connections:
        with connection:
            connection.settimeout(0.1)  # all that comes is there
            while connection.recv(1000):
                pass
    assert time.monotonic() < began + key_value_server._CLOSE_S, "it waited for threads that had ended"


@pytest.mark.usefixtures("patient")
def test_it_answers_at_its_end_what_it_has_been_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    server = KeyValueServer("127.0.0.1", 0, Store(), SECRETS)
    Client("127.0.0.1", server.port, LAUNCHERS).put("key", "value")
    asked, value = threading.Event(), server.values.value

    def slow(path: str) -> bytes | None:
        asked.set()
        time.sleep(0.3)
        return value(path)

    monkeypatch.setattr(server.values, "value", slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(Client("127.0.0.1", server.port, LAUNCHERS).get, "key")
        assert asked.wait(10)
        server.close()
        assert answer.result(10) == "value"


def test_it_closes_connections_whose_threads_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow may hold Python's lock from now on, and would keep such a client waiting."""
    go_on, serve = threading.Event(), KeyValueServer.finish_request

    def late(server: KeyValueServer, request: Any, address: Any) -> None:
        assert go_on.wait(20)
        serve(server, request, address)

    monkeypatch.setattr(KeyValueServer, "finish_request", late)
    server = KeyValueServer("127.0.0.1", 0, Store(), SECRETS)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        held(server, 1)
        server.close()
        connection.settimeout(0.1)
        assert connection.recv(1000) == b""
        go_on.set()
    held(server, 0)


def test_a_request_that_is_not_signed_with_the_secret_of_its_scope_gets_nothing(server: KeyValueServer) -> None:
    ranks = KeyValueStore(("127.0.0.1", server.port), secret=RANKS)
    ranks.write("exit_report", "mine")
    for path in ("/tsps/exit_report", "/launch/job"):
        assert request(server, "GET", path) == (401, b"")
        assert request(server, "PUT", path, b"forged") == (401, b"")
    assert KeyValueStore(("127.0.0.1", server.port), secret=LAUNCHERS).read("exit_report") == ""
    with pytest.raises(WrongSecretError, match="belongs to a job with another TFSPS_SECRET"):
        Client("127.0.0.1", server.port, RANKS).get("job")
    assert ranks.read("exit_report") == "mine"


def test_a_signature_is_good_for_its_request_alone(server: KeyValueServer) -> None:
    seen: list[dict[str, str]] = []
    handler = server.RequestHandlerClass
    signed = signed_requests.is_signed
    Client("127.0.0.1", server.port, LAUNCHERS).put("key", "value")
    try:
        signed_requests.is_signed = lambda *args: seen.append(dict(args[3])) or signed(*args)  # type: ignore
        Client("127.0.0.1", server.port, LAUNCHERS).put("key", "value")
    finally:
        signed_requests.is_signed = signed
    headers = {name: value for name, value in seen[0].items() if name.startswith("Tsps-")}
    assert handler is server.RequestHandlerClass
    for method, path, body in (
        ("PUT", "/launch/other", b"value"),
        ("PUT", "/launch/key", b"other"),
        ("GET", "/launch/key", b"value"),
    ):
        assert request(server, method, path, body, **headers)[0] == 401, (method, path, body)
    assert request(server, "PUT", "/launch/key", b"value", **headers)[0] == 200


def test_the_signature_of_an_answer_has_the_number_of_its_status() -> None:
    """Before Python 3.11, the text of a member of HTTPStatus was its name, and ranks refused every answer."""

    class Named(int):
        def __str__(self) -> str:
            return "HTTPStatus.OK"

    signatures = {signed_requests.answer_signature(b"secret", {}, status, b"") for status in (200, Named(200))}
    assert len(signatures) == 1


def test_an_answer_of_a_server_without_the_secret_is_refused() -> None:
    with KeyValueServerContext({"launch": b""}) as foreign:
        assert request(foreign, "PUT", "/launch/job", b"{}") == (200, b"")
        with pytest.raises(ConnectionError, match="is not a key-value store of this job"):
            Client("127.0.0.1", foreign.port, LAUNCHERS).get("job")


def test_values_have_limits(server: KeyValueServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_value_server, "_MOST_VALUES", 3)
    monkeypatch.setattr(key_value_server, "_MOST_BYTES", 10)
    client = Client("127.0.0.1", server.port, LAUNCHERS)
    for number in range(3):
        client.put(str(number), "xxx")
    client.put("0", "xxxx")
    for key, text in (("3", ""), ("0", "xxxxx")):
        with pytest.raises(ConnectionError, match="507"):
            client.put(key, text)
    assert client.get("0") == "xxxx"


def test_connections_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_value_server, "_MOST_CONNECTIONS", 2)
    with KeyValueServerContext(SECRETS) as server:
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        with pytest.raises(OSError, match=r"no answer|reset"):
            Client("127.0.0.1", server.port, LAUNCHERS).get("key")
        for connection in connections:
            connection.close()
        client = Client("127.0.0.1", server.port, LAUNCHERS)
        until(lambda: can(lambda: client.put("key", "value")), 10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")
def test_connections_of_other_users_of_this_machine_are_closed() -> None:
    program = """
import os, socket, sys
user = int(sys.argv[2])
os.setgid(user), os.setuid(user)
connection = socket.socket()
connection.settimeout(10)
connection.connect(("127.0.0.1", int(sys.argv[1])))
try:
    connection.sendall(b"GET /scope/key HTTP/1.0\\r\\n\\r\\n")
    print(connection.recv(1000).split()[1:2])
except ConnectionError:
    print([])
"""
    with KeyValueServerContext(SECRETS) as server:
        commands = [[sys.executable, "-I", "-c", program, str(server.port), user] for user in ("0", "65534")]
        answers = [
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for command in commands
        ]
    assert answers == ["[b'404']", "[]"]
