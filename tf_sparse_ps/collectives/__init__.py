"""Collectives: one small interface and its implementations. Nothing outside this package names Horovod."""

from tf_sparse_ps.collectives.interface import Collectives
from tf_sparse_ps.collectives.registry import current, resolve
from tf_sparse_ps.collectives.strategies import active_strategy, foreign_wrapper
from tf_sparse_ps.errors import CollectivesError

__all__ = ["Collectives", "CollectivesError", "active_strategy", "current", "foreign_wrapper", "resolve"]
