"""Ports for ranks that a test starts itself, as the launcher chooses them. It does not need TensorFlow."""

from __future__ import annotations

from tf_sparse_ps.launch.meeting import Ports


def free_ports(count: int) -> tuple[int, ...]:
    """Returns ports that no process uses now, and that no outgoing connection gets."""
    ports = Ports(count)
    ports.release()
    return ports.numbers
