"""The options of `TimedBuckets`, for the modules that do its work."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from tf_sparse_ps.config.plain_numbers import make_plain
from tf_sparse_ps.schedules.bucket_plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketOptions:
    """The options of a schedule with buckets. `TimedBuckets` describes each."""

    profile_steps: int = 8
    gap_threshold: float = 1e-3
    max_profiles: int = 3
    server: bool = False
    plan: Any = None

    def __post_init__(self) -> None:
        """Checks the options and reads the plan.

        Raises:
          ValueError: An option is out of range, or the plan does not work with the others, with the reason.
          OSError: The plan's file cannot be read.
        """
        make_plain(self, "profile_steps", "max_profiles", "gap_threshold")
        for name in ("profile_steps", "max_profiles"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a number of 1 or more. Received: {value!r}")
        if isinstance(self.gap_threshold, bool) or not isinstance(self.gap_threshold, (int, float)):
            raise ValueError(f"`gap_threshold` must be a number of seconds. Received: {self.gap_threshold!r}")
        if not self.gap_threshold > 0:
            raise ValueError(f"`gap_threshold` must be more than 0 seconds. Received: {self.gap_threshold!r}")
        if not isinstance(self.server, bool):
            raise ValueError(f"`server` must be True or False. Received: {self.server!r}")
        if self.plan is None:
            return
        if not isinstance(self.plan, (Plan, Mapping, str, os.PathLike)):
            raise ValueError(f"`plan` must be a Plan or the path of a saved one. Received: {self.plan!r}")
        plan = Plan.of(self.plan)
        if bool(plan.owners) != self.server:
            has = "has" if plan.owners else "has no"
            raise ValueError(f"`plan` {has} owners of buckets, which does not go with server={self.server}")
        object.__setattr__(self, "plan", plan)
