"""The server behind a `KeyValueStore`: texts by key over HTTP, in a thread. Needs no TensorFlow."""

from __future__ import annotations

import http.client
import http.server
import threading

_LONGEST = 1 << 20  # of a text, in bytes: they are messages


class _Handler(http.server.BaseHTTPRequestHandler):
    """PUT and GET of a path."""

    protocol_version = "HTTP/1.1"
    timeout = 10.0
    server: _Server

    def do_PUT(self) -> None:
        """Keeps the body."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _LONGEST:
            self.close_connection = True
            self._answer(http.client.REQUEST_ENTITY_TOO_LARGE)
            return
        body = self.rfile.read(int(length))
        with self.server.lock:
            self.server.texts[self.path] = body
        self._answer(http.client.OK)

    def do_GET(self) -> None:
        """What was kept, or 404."""
        with self.server.lock:
            body = self.server.texts.get(self.path)
        self._answer(http.client.NOT_FOUND if body is None else http.client.OK, body or b"")

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: whoever asks says what is wrong."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.texts: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that breaks is the other side's matter."""


class KeyValueServer:
    """Keeps texts until it is closed.

    Attributes:
      port: That it listens at.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        """Listens.

        Args:
          host: The interface's address; "": all.
          port: 0: any that is free.

        Raises:
          OSError: The port is taken, or the host is none of this machine's.
        """
        self._server = _Server((host, port))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="tsps-key-values", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
