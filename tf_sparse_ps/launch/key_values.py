"""The launchers' access to the key-value store of the job, which node 0's launcher serves over HTTP.

The store exists as long as this launcher. Each job has a new one.

    /tsps/...      texts of the ranks (`collectives/key_values.py`)
    /launch/...    texts of the launchers (`meeting.py`, `node_link.py`)
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Protocol

from tf_sparse_ps.collectives import signed_requests
from tf_sparse_ps.collectives.key_value_server import Values

_LAUNCH = "/launch/"


class Texts(Protocol):
    """The texts of the launchers, by key."""

    def get(self, key: str) -> str | None:
        """Returns the text of a key; None if it has none."""

    def put(self, key: str, text: str) -> None:
        """Replaces the text of a key."""

    def create(self, key: str, text: str) -> bool:
        """Sets the text of a key that has none. Returns False if the key has a text."""


class Store(Values):
    """The values of the store, and node 0's `Texts`. Thread-safe."""

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


class Client:
    """The `Texts` of the other launchers. Every method raises OSError if the store cannot be reached."""

    def __init__(self, host: str, port: int, secret: bytes, timeout_s: float = 2.0) -> None:
        """Stores the address, without connecting.

        Args:
          host, port: The address of the store.
          secret: The secret of the launchers.
          timeout_s: The timeout of each operation on the connection.
        """
        self._host, self._port, self._secret, self._timeout_s = host, port, secret, timeout_s

    def get(self, key: str) -> str | None:
        """See `Texts`."""
        status, body = self._request("GET", key)
        if status == HTTPStatus.NOT_FOUND:
            return None
        self._check(status)
        return body.decode(errors="replace")

    def put(self, key: str, text: str) -> None:
        """See `Texts`."""
        self._check(self._request("PUT", key, text)[0])

    def create(self, key: str, text: str) -> bool:
        """See `Texts`."""
        status, _ = self._request("PUT", key, text, only_new=True)
        if status == HTTPStatus.PRECONDITION_FAILED:
            return False
        self._check(status)
        return True

    def _request(self, method: str, key: str, text: str = "", *, only_new: bool = False) -> tuple[int, bytes]:
        return signed_requests.request(
            (self._host, self._port),
            self._secret,
            method,
            _LAUNCH + key,
            text.encode(),
            only_new=only_new,
            timeout_s=self._timeout_s,
        )

    def _check(self, status: int) -> None:
        if status != HTTPStatus.OK:
            raise ConnectionError(f"the store at {self._host}:{self._port} has refused a request with status {status}")
