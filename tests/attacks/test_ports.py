"""Another local user connects to the ports of a job on 127.0.0.1."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacker import attack, attacking
from launcher import Launchers, free_port, until

from tf_sparse_ps.collectives.key_values import EXIT_REPORT

PRINT = 'note(f"env-{rank}", json.dumps(dict(os.environ)))\nwait_for("go")\n'
FAIL = PRINT + 'sys.exit("mine") if rank == 1 else time.sleep(60)\n'


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launchers]:
    launchers = Launchers(tmp_path)
    yield launchers
    launchers.end()


def ask(port: int, request: bytes) -> bytes:
    """Sends bytes to a port and returns the answer, which is empty if the connection was closed."""
    with socket.socket() as connection:
        connection.settimeout(10)
        try:
            connection.connect(("127.0.0.1", port))
            connection.sendall(request)
            return connection.recv(1000)
        except ConnectionError:
            return b""


def put(path: str, body: bytes = b"forged") -> bytes:
    return f"PUT {path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def must_be_closed(port: int, *requests: bytes) -> None:
    """Raises in the other user's process if any request gets an answer."""
    for request in requests:
        answer = ask(port, request)
        assert answer == b"", answer


def test_the_store_of_a_launcher(launch: Launchers) -> None:
    job = launch("-np", "2", "--collectives", "tensorflow", program=FAIL)
    environment = json.loads(launch.wait_for("env-0", "env-1")[0])
    port = int(environment["TFSPS_KEY_VALUES"].rpartition(":")[2])
    requests = [
        put(f"/tsps/{EXIT_REPORT}"),
        put("/launch/cause"),
        f"GET /tsps/{EXIT_REPORT} HTTP/1.0\r\n\r\n".encode(),
        b"PUT /tsps/x HTTP/1.0\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100_000,
    ]
    assert attack(lambda: must_be_closed(port, *requests))
    (launch.folder / "go").touch()
    assert job.wait() == 1
    assert "rank 1 failed first, with exit status 1 (its last lines):\nmine" in job.said
    assert "forged" not in job.said


def test_connections_that_are_held_open(launch: Launchers, public: Path) -> None:
    job = launch("-np", "2", "--collectives", "tensorflow", program=PRINT)
    environment = json.loads(launch.wait_for("env-0", "env-1")[0])
    port = int(environment["TFSPS_KEY_VALUES"].rpartition(":")[2])
    threads = len(os.listdir(f"/proc/{job.process.pid}/task"))

    def hold() -> None:
        held = [socket.socket() for _ in range(500)]
        for connection in held:
            connection.connect(("127.0.0.1", port))
        (public / "held").touch()
        time.sleep(60)

    with attacking(hold):
        until((public / "held").exists)
        assert len(os.listdir(f"/proc/{job.process.pid}/task")) < threads + 20
        (launch.folder / "go").touch()
        assert job.wait() == 0, job.said


def test_horovods_rendezvous_server(launch: Launchers) -> None:
    pytest.importorskip("horovod")
    job = launch("-np", "2", "--collectives", "horovod", program=PRINT)
    environment = json.loads(launch.wait_for("env-0", "env-1")[0])
    port = int(environment["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    requests = [put("/global/0"), b"GET /global/0 HTTP/1.0\r\n\r\n", b"HEAD / HTTP/1.0\r\n\r\n"]
    assert attack(lambda: must_be_closed(port, *requests))
    assert b"501" in ask(port, b"HEAD / HTTP/1.0\r\n\r\n")
    assert b"413" in ask(port, b"PUT /global/0 HTTP/1.0\r\nContent-Length: 1000000000\r\n\r\n")
    (launch.folder / "go").touch()
    assert job.wait() == 0, job.said


def test_another_server_has_the_coordinators_port_first(launch: Launchers) -> None:
    """The other user answers like a store. The launcher of node 1 does not accept the answer."""
    port = free_port()
    content = json.dumps({"id": "job", "nnodes": 2, "collectives": "tensorflow"}).encode()

    def serve() -> None:
        with socket.create_server(("127.0.0.1", port)) as server:
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(10_000)
                    head = f"HTTP/1.0 200 OK\r\nContent-Length: {len(content)}\r\nTsps-Signature: {'0' * 64}\r\n\r\n"
                    connection.sendall(head.encode() + content)

    node = ("--nnodes", "2", "--coordinator", f"127.0.0.1:{port}", "--collectives", "tensorflow", "-np", "1")
    with attacking(serve):
        launcher_0 = launch(*node, "--node-rank", "0", program=PRINT)
        launcher_1 = launch(*node, "--node-rank", "1", "--timeout", "2", program=PRINT)
        assert (launcher_0.wait(), launcher_1.wait()) == (2, 1)
    assert "cannot serve the key-value store" in launcher_0.said
    assert "is not a key-value store of this job" in launcher_1.said
    assert not list(launch.folder.glob("env-*"))
