"""What ranks can tell each other outside of operations: small texts on a key-value store that the launcher keeps.

The store of `tf-sparse-ps run`, or the rendezvous server of `horovodrun --gloo` (checked with Horovod 0.28.1), keeps
them as long as the job lives. Where there is none, as under MPI, nothing is written and nothing found. A store that
does not answer is an empty one: it is read to explain an error, and must not be another.
"""

from __future__ import annotations

import contextlib
import http.client
import os

_TIMEOUT_S = 1.0
_SCOPE = "/tsps/"

EXIT_REPORT = "exit_report"  # why a rank ends, from itself
FOUND = "found"  # which rank has ended, or does not come, from others


class KeyValueStore:
    """Texts by key."""

    def __init__(self, address: tuple[str, int] | None = None) -> None:
        """A store at a host and a port; None: there is none."""
        self._address = address

    @classmethod
    def of_launcher(cls) -> KeyValueStore:
        """The one that the environment names: that of `tf-sparse-ps run`, or else Horovod's."""
        own_host, _, own_port = os.environ.get("TFSPS_KEY_VALUES", "").rpartition(":")
        if own_host and own_port.isdigit():
            return cls((own_host, int(own_port)))
        host, port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"), os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
        return cls((host, int(port)) if host and port.isdigit() else None)

    @property
    def there(self) -> bool:
        """Whether anything is kept."""
        return self._address is not None

    def read(self, key: str) -> str:
        """What was written last; "" if nothing was."""
        return self._request("GET", key, None)

    def reason(self) -> str:
        """Why a rank has ended or is waited for, from itself or else from others; "" if nobody has said."""
        return self.read(EXIT_REPORT) or self.read(FOUND)

    def write(self, key: str, text: str) -> None:
        """In place of what was there."""
        self._request("PUT", key, text.encode())

    def write_first(self, key: str, text: str) -> None:
        """Unless something is there."""
        if not self.read(key):
            self.write(key, text)

    def _request(self, method: str, key: str, body: bytes | None) -> str:
        if self._address is None:
            return ""
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(*self._address, timeout=_TIMEOUT_S)
            try:
                connection.request(method, _SCOPE + key, body)
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
            if answer.status == http.client.OK:
                return content.decode(errors="replace")
        return ""
