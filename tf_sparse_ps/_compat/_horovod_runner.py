"""Private names of Horovod's launcher. They are not in `_horovod.py`, because that module imports TensorFlow."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Sequence
from typing import Any

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

__all__ = ["Rendezvous"]


_LONGEST = 4 << 20  # the largest size of a value, in bytes


class _Handler(RendezvousHandler):
    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if length.isdigit() and int(length) <= _LONGEST:
            super().do_PUT()
        else:
            self.send_status_code(413)

    def do_HEAD(self) -> None:
        # The base class would answer with the status of files in the working directory.
        self.send_status_code(501)


class _Server(RendezvousHTTPServer):
    request_queue_size = 1024  # all ranks connect at the same time; Horovod's own server has 5
    daemon_threads = True

    def server_bind(self) -> None:
        # The base class would look up the machine's name in DNS, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


class Rendezvous:
    """Horovod's rendezvous server, which lives as long as this process.

    Horovod's ranks cannot sign their requests. The server closes a connection at once if the caller's function
    `may_connect` rejects it, so that other users of this machine are not served.

    Attributes:
      port: The port on which the server listens.
    """

    def __init__(self, host: str, may_connect: Callable[[socket.socket], bool]) -> None:
        """Opens the port and listens.

        Args:
          host: The address to listen on; "": all addresses of the machine.
          may_connect: A function that returns whether to serve a connection.
        """
        self._server = _Server((host, 0), _Handler, 0)
        self._server.verify_request = lambda connection, _: may_connect(connection)
        self.port = int(self._server.server_address[1])

    def begin(self, slots: Sequence[Any]) -> None:
        """Starts a thread that serves the ranks of a job. Ranks that have connected before wait until then.

        Args:
          slots: An object for each rank, with `hostname`, `size`, `local_rank`, `local_size` and `cross_size`.
        """
        self._server.init(slots)
        threading.Thread(target=self._server.serve_forever, name="rendezvous", daemon=True).start()
