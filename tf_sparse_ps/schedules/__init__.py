"""When gradients travel and when they are applied."""

from tf_sparse_ps.schedules.delayed_global import DelayedGlobal
from tf_sparse_ps.schedules.protocol import Course, Schedule
from tf_sparse_ps.schedules.synchronous import Synchronous

__all__ = ["Course", "DelayedGlobal", "Schedule", "Synchronous"]
