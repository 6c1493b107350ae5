"""The key-value store of a job: node 0's launcher serves it over HTTP, as Horovod's rendezvous server serves its own.

GET and PUT of /scope/key; 404 if nothing was put. A PUT with `If-None-Match: *` is refused with 412 where there is
something, so that of several writers one is the first. The store lives as long as the launcher, and every job has a
new one.

    /tsps/...      what ranks tell each other (`collectives/key_values.py`)
    /launch/...    what launchers tell each other (`meeting.py`)
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socketserver
import threading
from http import HTTPStatus
from typing import Protocol

_LONGEST = 16 << 20  # bytes of a value
_REQUEST_S = 10.0  # that a connection may take to say what it wants
_LAUNCH = "/launch/"


class Texts(Protocol):
    """What launchers tell each other, by key."""

    def get(self, key: str) -> str | None:
        """What was put last; None: nothing was."""

    def put(self, key: str, text: str) -> None:
        """In place of what was there."""

    def create(self, key: str, text: str) -> bool:
        """Puts it if nothing is there; returns whether."""


class Store:
    """The values, and node 0's way to them. Thread-safe."""

    def __init__(self) -> None:
        """Nothing is there."""
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> str | None:
        """See `Texts`."""
        value = self.value(_LAUNCH + key)
        return None if value is None else value.decode()

    def put(self, key: str, text: str) -> None:
        """See `Texts`."""
        self.set(_LAUNCH + key, text.encode(), only_new=False)

    def create(self, key: str, text: str) -> bool:
        """See `Texts`."""
        return self.set(_LAUNCH + key, text.encode(), only_new=True)

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


class Server(http.server.ThreadingHTTPServer):
    """Serves a store, from threads of its own, from its making until `close`."""

    request_queue_size = 1024  # all ranks may come at once

    def __init__(self, host: str, port: int, store: Store) -> None:
        """Binds the address.

        Args:
          host: Address to listen on; "": all of the machine's.
          port: 0: any that is free.
          store: What to serve.

        Raises:
          OSError: The address cannot be bound.
        """
        self.store = store
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="key-values", daemon=True)
        self._thread.start()

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
    server: Server

    def do_GET(self) -> None:
        value = self.server.store.value(self.path)
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
            done = self.server.store.set(self.path, value, only_new=only_new)
            self._answer(HTTPStatus.OK if done else HTTPStatus.PRECONDITION_FAILED)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class Client:
    """The way of other launchers to the store. Every method raises OSError if the store cannot be reached."""

    def __init__(self, host: str, port: int, timeout_s: float = 2.0) -> None:
        """Of the store at this address."""
        self._host, self._port, self._timeout_s = host, port, timeout_s

    def get(self, key: str) -> str | None:
        """See `Texts`."""
        status, body = self._request("GET", key, None, {})
        if status == HTTPStatus.NOT_FOUND:
            return None
        self._check(status)
        return body.decode(errors="replace")

    def put(self, key: str, text: str) -> None:
        """See `Texts`."""
        self._check(self._request("PUT", key, text, {})[0])

    def create(self, key: str, text: str) -> bool:
        """See `Texts`."""
        status, _ = self._request("PUT", key, text, {"If-None-Match": "*"})
        if status == HTTPStatus.PRECONDITION_FAILED:
            return False
        self._check(status)
        return True

    def _request(self, method: str, key: str, text: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        with contextlib.closing(connection):
            try:
                connection.request(method, _LAUNCH + key, None if text is None else text.encode(), headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except http.client.HTTPException as error:
                raise ConnectionError(f"no answer that makes sense ({type(error).__name__})") from error

    def _check(self, status: int) -> None:
        if status != HTTPStatus.OK:
            raise ConnectionError(f"{self._host}:{self._port} is no store of a launcher: it answers {status}")
