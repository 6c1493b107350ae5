"""Private names of Horovod's launcher, apart from `_horovod.py` because they need no TensorFlow."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Sequence
from typing import Any

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

__all__ = ["Rendezvous"]


class _Server(RendezvousHTTPServer):
    request_queue_size = 1024  # all ranks come at once; Horovod's own server has 5
    daemon_threads = True

    def server_bind(self) -> None:
        # Without looking for the machine's name in DNS, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


class Rendezvous:
    """Horovod's rendezvous server, which lives as long as this process.

    Attributes:
      port: Where it listens.
    """

    def __init__(self, host: str) -> None:
        """Listens.

        Args:
          host: On this address; "": on all of the machine's.
        """
        self._server = _Server((host, 0), RendezvousHandler, 0)
        self.port = int(self._server.server_address[1])

    def begin(self, slots: Sequence[Any]) -> None:
        """Serves, from a thread, the ranks of a job; those that came before have waited.

        Args:
          slots: Of each rank `hostname`, `size`, `local_rank`, `local_size` and `cross_size`.
        """
        self._server.init(slots)
        threading.Thread(target=self._server.serve_forever, name="rendezvous", daemon=True).start()
