"""The plain schedule: every step's gradients are reduced, and applied, in that step."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.schedules.protocol import Schedule, ScheduleState


@dataclasses.dataclass(frozen=True)
class Synchronous(Schedule):
    """All ranks apply the same reduced gradients in the step that computed them."""

    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """Nothing: it goes with everything."""

    def start(self, optimizer: Any, collectives: Collectives, name: str) -> ScheduleState:
        """See `Schedule.start`."""
        return ScheduleState(optimizer, collectives, name)

    def get_config(self) -> dict[str, Any]:
        """No options."""
        return {}
