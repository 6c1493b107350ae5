"""`Sharded`: a table whose rows are spread over the machines of a job, each row on one of them."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

WIRES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Sharded:
    """The placement of a sharded table: a hash of a row's key chooses the one machine of the job that keeps the row.

    N machines hold N times as many rows as one. All ranks look up rows together, in training and elsewhere, because
    rows may be on other machines.

    Attributes:
      wire: The type to which looked-up rows are rounded, whether they come from this machine or from another one:
        "float32", "bfloat16" or "float16".

    Raises:
      ValueError: The wire is unknown.

    Example:
      tsps.Embedding(None, 64, placement=tsps.Sharded())
    """

    wire: str = "float32"

    def __post_init__(self) -> None:
        if self.wire not in WIRES:
            raise ValueError(f"`wire` must be one of {WIRES}. Received: wire={self.wire!r}")

    def get_config(self) -> dict[str, Any]:
        """Returns a JSON-serialisable dict."""
        return dataclasses.asdict(self)


Placement = Literal["replicated"] | Sharded


def get(placement: Any) -> Placement:
    """Returns the placement of a table, given in any of its forms.

    Args:
      placement: "replicated", a `Sharded`, or the result of its `get_config`.

    Raises:
      ValueError: The argument is none of these.
    """
    if isinstance(placement, dict):
        return Sharded(**placement)
    if placement == "replicated" or isinstance(placement, Sharded):
        return placement
    raise ValueError(f'`placement` must be "replicated" or a tsps.Sharded. Received: placement={placement!r}')


def serialize(placement: Placement) -> Any:
    """Returns a JSON-serialisable form, which `get` reads."""
    return placement.get_config() if isinstance(placement, Sharded) else placement
