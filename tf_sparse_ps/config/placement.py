"""`Sharded`: a table whose rows are spread over the machines of a job, each row on one of them."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

WIRES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Sharded:
    """Each row is on one machine of the job, which a hash of its key decides: N machines hold N times as much.

    Look-ups of such a table are made by all ranks together, in training and elsewhere: rows that are on other machines
    travel.

    Attributes:
      wire: What looked-up rows are rounded to, those of the own machine too: "float32", "bfloat16" or "float16".

    Raises:
      ValueError: An unknown wire.

    Example:
      tsps.Embedding(None, 64, placement=tsps.Sharded())
    """

    wire: str = "float32"

    def __post_init__(self) -> None:
        if self.wire not in WIRES:
            raise ValueError(f"`wire` must be one of {WIRES}. Received: wire={self.wire!r}")

    def get_config(self) -> dict[str, Any]:
        """A JSON-serialisable dict."""
        return dataclasses.asdict(self)


Placement = Literal["replicated"] | Sharded


def get(placement: Any) -> Placement:
    """Placement of a table, from any of its forms.

    Args:
      placement: "replicated", a `Sharded`, or what its `get_config` made.

    Raises:
      ValueError: It is none of them.
    """
    if isinstance(placement, dict):
        return Sharded(**placement)
    if placement == "replicated" or isinstance(placement, Sharded):
        return placement
    raise ValueError(f'`placement` must be "replicated" or a tsps.Sharded. Received: placement={placement!r}')


def serialize(placement: Placement) -> Any:
    """A JSON-serialisable form for `get`."""
    return placement.get_config() if isinstance(placement, Sharded) else placement
