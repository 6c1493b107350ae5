"""What launchers tell each other: in the key-value store of the job, which node 0's launcher serves over HTTP.

The store lives as long as the launcher, and every job has a new one.

    /tsps/...      what ranks tell each other (`collectives/key_values.py`)
    /launch/...    what launchers tell each other (`meeting.py`)
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Protocol

from tf_sparse_ps.collectives import signed_requests
from tf_sparse_ps.collectives.key_value_server import Values

_LAUNCH = "/launch/"


class Texts(Protocol):
    """What launchers tell each other, by key."""

    def get(self, key: str) -> str | None:
        """What was put last; None: nothing was."""

    def put(self, key: str, text: str) -> None:
        """In place of what was there."""

    def create(self, key: str, text: str) -> bool:
        """Puts it if nothing is there; returns whether."""


class Store(Values):
    """The values, and node 0's way to them. Thread-safe."""

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
    """The way of other launchers to the store. Every method raises OSError if the store cannot be reached."""

    def __init__(self, host: str, port: int, secret: bytes, timeout_s: float = 2.0) -> None:
        """Finds the store.

        Args:
          host, port: Where it is.
          secret: Of the launchers.
          timeout_s: Of each operation on the connection.
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
            raise ConnectionError(f"{self._host}:{self._port} is no store of a launcher: it answers {status}")
