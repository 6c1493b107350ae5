"""What ranks can tell each other outside of operations: small texts in a key-value store.

A launcher keeps it as long as the job lives: `tf-sparse-ps run`, or the rendezvous server of `horovodrun --gloo`
(checked with Horovod 0.28.1); for ranks that TensorFlow connects without a launcher, rank 0 does
(`key_value_server.py`). Where there is none, as under MPI, nothing is written and nothing found. A store that does not
answer is an empty one: it is read to explain an error, and must not be another.
"""

from __future__ import annotations

import contextlib
import http.client
import os

from tf_sparse_ps.collectives import signed_requests

_TIMEOUT_S = 1.0
_SCOPE = "/tsps/"

EXIT_REPORT = "exit_report"  # why a rank ends, from itself
FOUND = "found"  # which rank has ended, or does not come, from others


class KeyValueStore:
    """Texts by key."""

    def __init__(self, address: tuple[str, int] | None = None, keeper: str = "", secret: bytes = b"") -> None:
        """Finds the store.

        Args:
          address: Host and port; None: there is none.
          keeper: The rank that keeps it, in words; "": no rank does.
          secret: Signs requests; empty: they are not signed, as Horovod's store wants it.
        """
        self._address, self._keeper, self._secret = address, keeper, secret

    @classmethod
    def of_launcher(cls) -> KeyValueStore:
        """The one that the environment names: that of `tf-sparse-ps run`, or else Horovod's."""
        host, _, port = os.environ.get("TFSPS_KEY_VALUES", "").rpartition(":")
        if host and port.isdigit():
            return cls((host, int(port)), secret=signed_requests.of_environment())
        host = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
        port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
        return cls((host, int(port)) if host and port.isdigit() else None)

    @property
    def there(self) -> bool:
        """Whether anything is kept."""
        return self._address is not None

    def read(self, key: str) -> str:
        """What was written last; "" if nothing was."""
        return self._request("GET", key, None) or ""

    def reason(self) -> str:
        """Why a rank has ended or is waited for, from itself or else from others; "" if nobody has said."""
        if self._keeper and self._request("GET", EXIT_REPORT, None) is None:
            return f"{self._keeper} does not answer: it has ended, or its machine is cut off"
        return self.read(EXIT_REPORT) or self.read(FOUND)

    def write(self, key: str, text: str) -> bool:
        """In place of what was there; whether the store has it now."""
        return self._request("PUT", key, text.encode()) is not None

    def write_first(self, key: str, text: str) -> None:
        """Unless something is there."""
        if not self.read(key):
            self.write(key, text)

    def _request(self, method: str, key: str, body: bytes | None) -> str | None:
        """The answer, "" where nothing is kept; None: there was none."""
        if self._address is None:
            return None
        with contextlib.suppress(OSError):
            status, content = signed_requests.request(
                self._address, self._secret, method, _SCOPE + key, body or b"", timeout_s=_TIMEOUT_S
            )
            return content.decode(errors="replace") if status == http.client.OK else ""
        return None
