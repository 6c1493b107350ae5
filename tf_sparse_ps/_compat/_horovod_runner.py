"""Private names of Horovod's launcher, apart from `_horovod.py` because they need no TensorFlow."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Sequence
from typing import Any

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

__all__ = ["Rendezvous"]


_LONGEST = 4 << 20  # bytes of a value


class _Handler(RendezvousHandler):
    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if length.isdigit() and int(length) <= _LONGEST:
            super().do_PUT()
        else:
            self.send_status_code(413)

    def do_HEAD(self) -> None:
        # Its base class would answer with the status of files of the working directory.
        self.send_status_code(501)


class _Server(RendezvousHTTPServer):
    request_queue_size = 1024  # all ranks come at once; Horovod's own server has 5
    daemon_threads = True

    def server_bind(self) -> None:
        # Without looking for the machine's name in DNS, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


class Rendezvous:
    """Horovod's rendezvous server, which lives as long as this process.

    Horovod's ranks cannot sign their requests. Connections of other users of this machine are closed at once, by a
    function of the caller.

    Attributes:
      port: Where it listens.
    """

    def __init__(self, host: str, may_connect: Callable[[socket.socket], bool]) -> None:
        """Listens.

        Args:
          host: On this address; "": on all of the machine's.
          may_connect: Whether to serve a connection.
        """
        self._server = _Server((host, 0), _Handler, 0)
        self._server.verify_request = lambda connection, _: may_connect(connection)
        self.port = int(self._server.server_address[1])

    def begin(self, slots: Sequence[Any]) -> None:
        """Serves, from a thread, the ranks of a job; those that came before have waited.

        Args:
          slots: Of each rank `hostname`, `size`, `local_rank`, `local_size` and `cross_size`.
        """
        self._server.init(slots)
        threading.Thread(target=self._server.serve_forever, name="rendezvous", daemon=True).start()
