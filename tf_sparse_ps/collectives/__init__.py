"""Collectives: one small protocol, and what implements it. Nothing outside this package names Horovod."""

from tf_sparse_ps.collectives.protocol import (
    Collectives,
    CollectivesError,
    active_strategy,
    current,
    foreign_wrapper,
    resolve,
)

__all__ = ["Collectives", "CollectivesError", "active_strategy", "current", "foreign_wrapper", "resolve"]
