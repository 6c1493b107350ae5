"""The server behind a `KeyValueStore`, as Horovod's rendezvous server serves its own. Needs no TensorFlow.

GET and PUT of /scope/key; 404 if nothing was put. A PUT with `If-None-Match: *` is refused with 412 where there is
something, so that of several writers one is the first. Nothing is kept longer than the process.
"""

from __future__ import annotations

import http.server
import socketserver
import threading
from http import HTTPStatus

_LONGEST = 16 << 20  # bytes of a value
_REQUEST_S = 10.0  # that a connection may take to say what it wants


class Values:
    """What the server serves. Thread-safe."""

    def __init__(self) -> None:
        """Nothing is there."""
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}

    def value(self, path: str) -> bytes | None:
        """The value of a path, /scope/key."""
        with self._lock:
            return self._values.get(path)

    def set(self, path: str, value: bytes, *, only_new: bool) -> bool:
        """Sets the value of a path; returns False if there is one and only a new one was wanted."""
        with self._lock:
            if only_new and path in self._values:
                return False
            self._values[path] = value
            return True


class KeyValueServer(http.server.ThreadingHTTPServer):
    """Serves values, from threads of its own, from its making until `close`."""

    daemon_threads = True
    request_queue_size = 1024  # all ranks may come at once

    def __init__(self, host: str, port: int, values: Values) -> None:
        """Binds the address.

        Args:
          host: Address to listen on; "": all of the machine's.
          port: 0: any that is free.
          values: What to serve.

        Raises:
          OSError: The address cannot be bound.
        """
        self.values = values
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="tsps-key-values", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """That it listens at."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Binds, without looking for the machine's name in DNS, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle is none of the user's concern."""

    def close(self) -> None:
        """Stops serving."""
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    server: KeyValueServer

    def do_GET(self) -> None:
        value = self.server.values.value(self.path)
        self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            self._answer(HTTPStatus.LENGTH_REQUIRED)
        elif int(length) > _LONGEST:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            value = self.rfile.read(int(length))
            if len(value) < int(length):  # the writer died
                return
            only_new = self.headers.get("If-None-Match") == "*"
            done = self.server.values.set(self.path, value, only_new=only_new)
            self._answer(HTTPStatus.OK if done else HTTPStatus.PRECONDITION_FAILED)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
