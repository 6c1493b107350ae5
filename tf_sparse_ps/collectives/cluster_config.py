"""Which processes TF_CONFIG names, and which of them this one is. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os

VARIABLE = "TF_CONFIG"


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """The ranks of a job, the chief first.

    Attributes:
      addresses: HOST:PORT of each rank's server.
      rank: This process.
    """

    addresses: tuple[str, ...]
    rank: int

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.addresses)


def find() -> ClusterConfig | None:
    """What TF_CONFIG says; None: nothing, or this process is none of its workers (an evaluator is alone).

    Raises:
      ValueError: It is not what TensorFlow describes, with what is wrong; or it names parameter servers.
    """
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        cluster, task = dict(config.get("cluster") or {}), dict(config.get("task") or {})
        chiefs, workers = (list(cluster.get(job, [])) for job in ("chief", "worker"))
    except (ValueError, TypeError, AttributeError) as error:
        raise _wrong(f"it cannot be read ({error})", text) from None
    if not cluster:
        return None
    if cluster.get("ps"):
        raise _wrong("it names parameter servers, and here there are none: all ranks are workers", text)
    kind, index = task.get("type"), task.get("index")
    if kind == "evaluator":
        return None
    if kind not in ("chief", "worker") or len(chiefs) > 1:
        raise _wrong("its task's type must be chief, of which there is at most one, worker or evaluator", text)
    own = chiefs if kind == "chief" else workers
    if isinstance(index, str) and index.isdigit():
        index = int(index)  # some operators write it so
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(own):
        raise _wrong(f"its task's index must be a number from 0 to {len(own) - 1}, of the {kind}s", text)
    addresses = tuple(str(one) for one in (*chiefs, *workers))
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise _wrong(f"{address!r} is not HOST:PORT", text)
    if len(set(addresses)) < len(addresses):
        raise _wrong("two workers have one address", text)
    return ClusterConfig(addresses, index + (len(chiefs) if kind == "worker" else 0))


def _wrong(reason: str, text: str) -> ValueError:
    return ValueError(f"{VARIABLE} names no workers that can train together: {reason}. Received: {text!r}")
