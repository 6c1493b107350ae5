"""Requests to the job's key-value store, signed with the job's secret. Imports no TensorFlow.

Any process of the machine can connect to the store. Only processes that know the secret get an answer, and a client
accepts an answer only from a server that knows it:

- A request has a random nonce, the digest of its body, and HMAC-SHA256(secret, method, path, nonce, digest, condition).
- An answer has HMAC-SHA256(secret, nonce of the request, status, body).

The server checks the signature before it reads the body. The secret itself never travels.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import os
import secrets
from collections.abc import Mapping

from tf_sparse_ps.errors import WrongSecretError

VARIABLE = "TFSPS_SECRET"
LONGEST = 4 << 20  # bytes of a value

NONCE, DIGEST, SIGNATURE = "Tsps-Nonce", "Tsps-Digest", "Tsps-Signature"
ONLY_NEW = {"If-None-Match": "*"}


def of_environment() -> bytes:
    """Returns the secret in the environment; empty if it is not set. Requests are then not signed."""
    return os.environ.get("TFSPS_SECRET", "").encode()


def derived(secret: bytes, purpose: str) -> bytes:
    """Returns a secret of 64 hexadecimal digits that is derived from a secret. It does not reveal that secret.

    Args:
      secret: The secret to derive from.
      purpose: A text. Different purposes give different secrets.
    """
    return _signed(secret, "derived", purpose).encode()


def request(
    address: tuple[str, int],
    secret: bytes,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    only_new: bool = False,
    timeout_s: float,
) -> tuple[int, bytes]:
    """Sends a request and returns status and body of the answer.

    Args:
      address: The host and port of the store.
      secret: The job's secret; empty: neither the request nor the answer is signed.
      method: GET or PUT.
      path: /scope/key.
      body: The value of a PUT.
      only_new: Whether a PUT fails with 412 if the key has a value.
      timeout_s: The timeout of each operation on the connection.

    Raises:
      WrongSecretError: The store has another secret.
      OSError: The store cannot be reached, or the server at its address is not a store of this job.
    """
    headers, nonce = dict(ONLY_NEW) if only_new else {}, secrets.token_hex(16)
    if secret:
        digest = hashlib.sha256(body).hexdigest()
        signature = _signed(secret, "request", method, path, nonce, digest, headers.get("If-None-Match", ""))
        headers |= {NONCE: nonce, DIGEST: digest, SIGNATURE: signature}
    connection = http.client.HTTPConnection(*address, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.request(method, path, body if method == "PUT" else None, headers)
            answer = connection.getresponse()
            content = answer.read(LONGEST + 1)
        except http.client.HTTPException as error:
            raise ConnectionError(f"no answer in valid HTTP ({type(error).__name__})") from error
    name = f"{address[0]}:{address[1]}"
    if len(content) > LONGEST:
        raise ConnectionError(f"the server at {name} is not a key-value store: it sends more than {LONGEST} bytes")
    if not secret:
        return answer.status, content
    if answer.status == http.client.UNAUTHORIZED and answer.getheader(SIGNATURE) == "none":
        raise WrongSecretError(f"the key-value store at {name} belongs to a job with another {VARIABLE}")
    expected = _signed(secret, "answer", nonce, str(answer.status), hashlib.sha256(content).hexdigest())
    if not hmac.compare_digest(expected, answer.getheader(SIGNATURE) or ""):
        raise ConnectionError(f"the server at {name} is not a key-value store of this job")
    return answer.status, content


def is_signed(secret: bytes, method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Returns whether a request is signed with a secret. `has_digest` checks its body."""
    expected = _signed(
        secret,
        "request",
        method,
        path,
        headers.get(NONCE, ""),
        headers.get(DIGEST, ""),
        headers.get("If-None-Match", ""),
    )
    return hmac.compare_digest(expected.encode(), headers.get(SIGNATURE, "").encode(errors="replace"))


def has_digest(body: bytes, headers: Mapping[str, str]) -> bool:
    """Returns whether the body of a signed request is the one that was signed."""
    return hmac.compare_digest(hashlib.sha256(body).hexdigest().encode(), headers.get(DIGEST, "").encode())


def answer_signature(secret: bytes, headers: Mapping[str, str], status: int, body: bytes) -> str:
    """Returns the signature of the answer to a request with these headers."""
    # A member of HTTPStatus is a number whose text is its name under Python 3.10.
    return _signed(secret, "answer", headers.get(NONCE, ""), str(int(status)), hashlib.sha256(body).hexdigest())


def _signed(secret: bytes, *parts: str) -> str:
    """Returns the HMAC of texts. The length of each text precedes it, so that two lists never have the same bytes."""
    signed = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        data = part.encode(errors="replace")
        signed.update(len(data).to_bytes(8, "little") + data)
    return signed.hexdigest()
