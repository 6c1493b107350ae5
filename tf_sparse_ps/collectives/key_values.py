"""`KeyValueStore`: small texts that ranks leave for each other outside of operations.

A launcher keeps the store as long as the job runs: `tf-sparse-ps run`, or the rendezvous server of `horovodrun --gloo`
(tested with Horovod 0.28.1). If TensorFlow connects the ranks without a launcher, rank 0 keeps it
(`key_value_server.py`). Under MPI a job has no store: writes have no effect, and reads return "". A store that does not
answer also reads as "", because ranks read it to explain an error, and a second error would hide the first.
"""

from __future__ import annotations

import contextlib
import http.client
import os

from tf_sparse_ps.collectives import signed_requests

_TIMEOUT_S = 1.0
_SCOPE = "/tsps/"

EXIT_REPORT = "exit_report"  # why a rank ends, written by this rank
FOUND = "found"  # which rank has ended or is missing, written by another rank


def path_of(key: str) -> str:
    """Returns the path of a key in the values of the store's server."""
    return _SCOPE + key


class KeyValueStore:
    """A rank's access to the texts of the job's key-value store."""

    def __init__(self, address: tuple[str, int] | None = None, keeper: str = "", secret: bytes = b"") -> None:
        """Stores the address, without connecting.

        Args:
          address: The host and port of the store; None: the job has no store.
          keeper: The rank that keeps the store, in words; "": no rank keeps it.
          secret: The secret that signs requests; empty: they are not signed. Horovod's store needs unsigned requests.
        """
        self._address, self._keeper, self._secret = address, keeper, secret

    @classmethod
    def of_launcher(cls) -> KeyValueStore:
        """Returns the store that the environment names: that of `tf-sparse-ps run`, or else Horovod's."""
        host, _, port = os.environ.get("TFSPS_KEY_VALUES", "").rpartition(":")
        if host and port.isdigit():
            return cls((host, int(port)), secret=signed_requests.of_environment())
        host = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
        port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
        return cls((host, int(port)) if host and port.isdigit() else None)

    @property
    def there(self) -> bool:
        """Whether the job has a store."""
        return self._address is not None

    def read(self, key: str) -> str:
        """Returns the text that was last written to a key; "" if nothing was written."""
        return self._request("GET", key, None) or ""

    def reason(self) -> str:
        """Returns why a rank has ended or is missing, as it or else another rank reports; "" without a report.

        A keeper of the store that does not answer is missing.
        """
        return self._reason(OSError)

    def certain_reason(self) -> str:
        """Returns `reason`, but "" if the keeper only does not answer: it may be stopped, or hold Python's lock."""
        return self._reason(ConnectionRefusedError)

    def _reason(self, missing: type[OSError]) -> str:
        """Returns the reason. The keeper is missing if a request fails with an error of the type `missing`."""
        if not self._keeper:
            return self.read(EXIT_REPORT) or self.read(FOUND)
        try:
            return self._send("GET", EXIT_REPORT, None) or self.read(FOUND)
        except missing:
            return f"{self._keeper} does not answer: it has ended, or its machine cannot be reached"
        except OSError:
            return ""

    def write(self, key: str, text: str) -> bool:
        """Replaces the text of a key. Returns whether the store has the new text."""
        return self._request("PUT", key, text.encode()) is not None

    def write_first(self, key: str, text: str) -> None:
        """Writes a text to a key that has none."""
        if not self.read(key):
            self.write(key, text)

    def _request(self, method: str, key: str, body: bytes | None) -> str | None:
        """Returns the body of the answer, "" if it is an error status; None without an answer."""
        with contextlib.suppress(OSError):
            return self._send(method, key, body)
        return None

    def _send(self, method: str, key: str, body: bytes | None) -> str | None:
        """Returns the body of the answer, "" if it is an error status; None if the job has no store.

        Raises:
          OSError: The store does not answer.
        """
        if self._address is None:
            return None
        status, content = signed_requests.request(
            self._address, self._secret, method, path_of(key), body or b"", timeout_s=_TIMEOUT_S
        )
        return content.decode(errors="replace") if status == http.client.OK else ""
