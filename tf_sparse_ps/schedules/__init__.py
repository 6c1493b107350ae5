"""When gradients travel and when they are applied."""

from tf_sparse_ps.schedules.synchronous import Synchronous

__all__ = ["Synchronous"]
