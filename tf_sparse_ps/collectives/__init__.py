"""Collectives: one small protocol, and what implements it. Nothing outside this package names Horovod."""

from tf_sparse_ps.collectives.protocol import Collectives, CollectivesError, current, resolve

__all__ = ["Collectives", "CollectivesError", "current", "resolve"]
