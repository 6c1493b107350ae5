"""The key-value store: what it answers, and to whom."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from launcher import free_port

from tf_sparse_ps.collectives.key_value_server import KeyValueServer
from tf_sparse_ps.collectives.key_values import KeyValueStore
from tf_sparse_ps.launch.key_values import Client, Store


@pytest.fixture
def server() -> Iterator[KeyValueServer]:
    one = KeyValueServer("127.0.0.1", 0, Store())
    yield one
    one.close()


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


def test_ranks_use_it_as_they_use_horovods(server: KeyValueServer) -> None:
    store = KeyValueStore(("127.0.0.1", server.server_port))
    assert store.read("key") == ""
    store.write("key", "einsÄ")
    store.write_first("key", "two")
    assert store.read("key") == "einsÄ"
    assert request(server, "GET", "/tsps/key") == (200, "einsÄ".encode())


def test_of_several_that_create_one_is_the_first(server: KeyValueServer) -> None:
    client = Client("127.0.0.1", server.server_port, timeout_s=10)
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
    with socket.create_connection(("127.0.0.1", server.server_port)) as one:
        one.sendall(b"PUT /scope/key HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
    with socket.create_connection(("127.0.0.1", server.server_port)) as one:
        one.sendall(b"nonsense\r\n\r\n")
        assert b"400" in one.recv(1000)
    assert request(server, "GET", "/scope/key")[0] == 404


def test_a_store_that_is_not_there_is_an_error_to_launchers_and_empty_to_ranks() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        Client("127.0.0.1", port).get("key")
    assert KeyValueStore(("127.0.0.1", port)).read("key") == ""


def test_what_answers_and_is_no_store_is_an_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with ThreadPoolExecutor(1) as pool:

            def answer() -> None:
                connection, _ = other.accept()
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")
                connection.close()

            done = pool.submit(answer)
            with pytest.raises(ConnectionError):
                Client("127.0.0.1", other.getsockname()[1]).get("key")
            done.result(10)


def test_it_ends_with_its_job() -> None:
    server = KeyValueServer("127.0.0.1", 0, Store())
    port = server.server_port
    server.close()
    with pytest.raises(ConnectionRefusedError):
        Client("127.0.0.1", port).get("key")
    again = KeyValueServer("127.0.0.1", port, Store())
    again.close()
