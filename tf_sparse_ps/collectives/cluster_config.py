"""The processes that TF_CONFIG names, and which of them this process is. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os

VARIABLE = "TF_CONFIG"


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """The ranks of a job, the chief first.

    Attributes:
      addresses: The HOST:PORT of each rank's server.
      rank: The rank of this process.
    """

    addresses: tuple[str, ...]
    rank: int

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.addresses)


def find() -> ClusterConfig | None:
    """Returns the workers that TF_CONFIG names.

    Returns:
      None if the variable is not set, or if this process is not one of the workers (an evaluator is alone).

    Raises:
      ValueError: TF_CONFIG does not have the form that TensorFlow documents, or it names parameter servers. The message
        states what is wrong.
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
        raise _wrong("it names parameter servers, but all ranks of tf_sparse_ps must be workers", text)
    kind, index = task.get("type"), task.get("index")
    if kind == "evaluator":
        return None
    if kind not in ("chief", "worker") or len(chiefs) > 1:
        raise _wrong("its task's type must be chief, worker or evaluator, with at most one chief", text)
    processes = chiefs if kind == "chief" else workers
    if isinstance(index, str) and index.isdigit():
        index = int(index)  # some Kubernetes operators write the index as a string
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(processes):
        raise _wrong(f"the index of this {kind} must be a number from 0 to {len(processes) - 1}", text)
    addresses = tuple(str(address) for address in (*chiefs, *workers))
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise _wrong(f"{address!r} is not HOST:PORT", text)
    if len(set(addresses)) < len(addresses):
        raise _wrong("two workers have the same address", text)
    return ClusterConfig(addresses, index + (len(chiefs) if kind == "worker" else 0))


def _wrong(reason: str, text: str) -> ValueError:
    return ValueError(
        f"{VARIABLE} names no workers that can train together: {reason}. Correct it on every rank. Received: {text!r}"
    )
