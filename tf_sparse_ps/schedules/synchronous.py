"""The plain schedule: every step's gradients are reduced, and applied, in that step."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Synchronous:
    """All ranks apply the same reduced gradients in the step that computed them."""

    def get_config(self) -> dict[str, Any]:
        """No options."""
        return {}
