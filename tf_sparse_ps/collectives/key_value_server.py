"""The HTTP server of a `KeyValueStore`, with the protocol of Horovod's rendezvous server. Imports no TensorFlow.

The server supports GET and PUT of /scope/key. GET returns 404 if the key has no value. A PUT with `If-None-Match: *`
returns 412 if the key has a value, so that exactly one of several writers succeeds. The values are in memory only.

Each scope has a secret. The server answers a request that is not signed with it (`signed_requests.py`) with 401, before
it reads the body. It closes connections of other users of this machine immediately.
"""

from __future__ import annotations

import contextlib
import http.server
import socket
import socketserver
import threading
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tf_sparse_ps.collectives import signed_requests
from tf_sparse_ps.node import local_peers

_MOST_VALUES = 1 << 16
_MOST_BYTES = 64 << 20  # of all values
_MOST_CONNECTIONS = 2048  # at a time: all ranks may connect at once
_REQUEST_S = 10.0  # the time that a client may take to send its request
_CLOSE_S = 1.0  # the time that a server which closes leaves for answers


class Values:
    """The values of a server, by path. Thread-safe."""

    def __init__(self) -> None:
        """Starts without values."""
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._n_bytes = 0

    def value(self, path: str) -> bytes | None:
        """Returns the value of a path, /scope/key; None if it has none."""
        with self._lock:
            return self._values.get(path)

    def set(self, path: str, value: bytes, *, only_new: bool) -> bool:
        """Sets the value of a path.

        Args:
          path: /scope/key.
          value: The value.
          only_new: Whether to keep a value that the path already has.

        Returns:
          Whether the path has the new value.

        Raises:
          MemoryError: The store would have too many values, or too many bytes.
        """
        with self._lock:
            before = self._values.get(path)
            if only_new and before is not None:
                return False
            n_bytes = self._n_bytes + len(value) - len(before or b"")
            if n_bytes > _MOST_BYTES or (before is None and len(self._values) >= _MOST_VALUES):
                raise MemoryError(
                    f"the key-value store is full. It has {len(self._values)} values with {self._n_bytes} bytes"
                )
            self._values[path], self._n_bytes = value, n_bytes
            return True


class KeyValueServer(http.server.ThreadingHTTPServer):
    """A server of values. It serves them from its own threads until `close`."""

    daemon_threads = True
    request_queue_size = 1024  # all ranks may connect at once

    def __init__(self, host: str, port: int, values: Values, secrets: Mapping[str, bytes]) -> None:
        """Binds the address and starts to serve.

        Args:
          host: The address to listen on; "": all addresses of the machine.
          port: The port; 0: any free port.
          values: The values to serve.
          secrets: The secret of each scope. If a secret is empty, requests of its scope are not signed.

        Raises:
          OSError: The address cannot be bound.
        """
        self.values, self.secrets = values, dict(secrets)
        self._connections: set[socket.socket] = set()
        self._changed = threading.Condition()  # `_connections` has changed
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="tsps-key-values", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Binds without looking up the machine's name in DNS, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: object) -> bool:
        """Returns False for connections of other users of this machine, and for too many connections at a time."""
        if not local_peers.may_connect(request):
            return False
        with self._changed:
            if len(self._connections) >= _MOST_CONNECTIONS:
                return False
            self._connections.add(request)
        return True

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection, after its last answer or without one."""
        with self._changed:
            super().shutdown_request(request)
            self._connections.discard(request)
            self._changed.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores the error of a client that disconnected during a request."""

    def close(self) -> None:
        """Stops serving and closes all connections. Requests that have arrived are still answered, within a second.

        No connection may stay open. TensorFlow holds Python's lock while it connects the ranks, so the thread that
        serves a connection may not run for minutes. The client may be TensorFlow on another rank, which looks for a
        server at this port. It would wait for an answer on this connection.
        """
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self._changed:
            self._end_connections(socket.SHUT_RD)
            self._changed.wait_for(lambda: not self._connections, _CLOSE_S)
            self._end_connections(socket.SHUT_RDWR)

    def _end_connections(self, how: int) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the client has closed its end
                connection.shutdown(how)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    server: KeyValueServer

    def do_GET(self) -> None:
        if self._is_signed():
            value = self.server.values.value(self.path)
            self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        if not self._is_signed():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            self._answer(HTTPStatus.LENGTH_REQUIRED)
        elif int(length) > signed_requests.LONGEST:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self._put(int(length))

    def _put(self, length: int) -> None:
        value = self.rfile.read(length)
        if len(value) < length:  # the writer died
            return
        if self._secret and not signed_requests.has_digest(value, dict(self.headers)):
            self._answer(HTTPStatus.UNAUTHORIZED)
            return
        only_new = self.headers.get("If-None-Match") == "*"
        try:
            done = self.server.values.set(self.path, value, only_new=only_new)
        except MemoryError:
            self._answer(HTTPStatus.INSUFFICIENT_STORAGE)
            return
        self._answer(HTTPStatus.OK if done else HTTPStatus.PRECONDITION_FAILED)

    @property
    def _secret(self) -> bytes | None:
        """The secret of the request's scope; None: the server has no such scope."""
        return self.server.secrets.get(self.path.split("/")[1] if self.path.startswith("/") else "")

    def _is_signed(self) -> bool:
        secret = self._secret
        if secret is None:
            self._answer(HTTPStatus.NOT_FOUND)
            return False
        if secret and not signed_requests.is_signed(secret, self.command, self.path, dict(self.headers)):
            self._answer(HTTPStatus.UNAUTHORIZED)
            return False
        return True

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        secret, signature = self._secret, "none"
        if secret and status != HTTPStatus.UNAUTHORIZED:
            signature = signed_requests.answer_signature(secret, dict(self.headers), status, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header(signed_requests.SIGNATURE, signature)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""
