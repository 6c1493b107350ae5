"""Schedules decide when dense gradients travel between ranks, and when they are applied."""

from tf_sparse_ps.schedules.bucket_plan import Plan
from tf_sparse_ps.schedules.delayed_global import DelayedGlobal
from tf_sparse_ps.schedules.schedule import Schedule, ScheduleState
from tf_sparse_ps.schedules.synchronous import Synchronous
from tf_sparse_ps.schedules.timed_buckets import TimedBuckets

__all__ = ["DelayedGlobal", "Plan", "Schedule", "ScheduleState", "Synchronous", "TimedBuckets"]
