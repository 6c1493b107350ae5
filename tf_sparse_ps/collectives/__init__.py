"""Collectives: one small protocol, and what implements it. Nothing outside this package names Horovod."""

from tf_sparse_ps.collectives.protocol import (
    Collectives,
    active_strategy,
    current,
    foreign_wrapper,
    resolve,
)
from tf_sparse_ps.errors import CollectivesError

__all__ = ["Collectives", "CollectivesError", "active_strategy", "current", "foreign_wrapper", "resolve"]
