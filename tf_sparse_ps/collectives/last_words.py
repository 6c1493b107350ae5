"""What a rank says before an end that concerns all: kept by Horovod's launcher, where all ranks look.

Ranks that see another end know no more than Horovod does, which is that it ended. The launcher's rendezvous server
(`horovodrun --gloo`; checked with Horovod 0.28.1) keeps small texts, and lives as long as the job. Without
one, as under MPI, nothing is said and nothing found.
"""

from __future__ import annotations

import contextlib
import http.client
import os

_TIMEOUT_S = 1.0
_PATH = "/tsps/last_words"


def joined(rank: int) -> str:
    """Says, and returns, that a rank called `hvd.join`."""
    return _say(
        f"rank {rank} called hvd.join(), which no job of tf_sparse_ps can do: gradients of tables are gathered, and "
        "merged in shared memory, from all ranks or not at all. For ranks with fewer batches there is "
        "tsps.callbacks.EqualSteps; in a loop of your own such a rank makes its steps with "
        "optimizer.rank_weight.assign(0.0)"
    )


def no_more_steps(rank: int, waited_s: float) -> str:
    """Says, and returns, that a rank came to its end long before others."""
    return _say(
        f"rank {rank} had no more steps to make: it came to its end, waited {waited_s:.0f} s for the others, and "
        "ended. All ranks must make the same number of steps; tsps.callbacks.EqualSteps sees to that in fit"
    )


def said() -> str | None:
    """What a rank has left, or None."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        found = _request("GET")
        return None if found is None else found.decode(errors="replace")
    return None


def _say(text: str) -> str:
    """In place of what another rank has said."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        _request("PUT", text.encode())
    return text


def _request(method: str, body: bytes | None = None) -> bytes | None:
    host, port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"), os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
    if not host or not port.isdigit():
        return None
    connection = http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
    try:
        connection.request(method, _PATH, body)
        answer = connection.getresponse()
        content = answer.read()
        return content if answer.status == http.client.OK else None
    finally:
        connection.close()
