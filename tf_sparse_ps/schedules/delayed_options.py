"""The options of `DelayedGlobal`, for the modules that do its work."""

from __future__ import annotations

import dataclasses
import math

from tf_sparse_ps.config.plain_numbers import make_plain

_APPLY = ("all", "newest")


@dataclasses.dataclass(frozen=True)
class DelayedOptions:
    """The options of a delayed schedule. `DelayedGlobal` describes each."""

    staleness: int = 1
    cycle: int = 100
    _: dataclasses.KW_ONLY
    apply: str = "all"
    sparse: bool = True
    late_after_s: float | None = None
    reproducible: bool = False

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
          ValueError: An option is out of range, or two do not work together.
        """
        make_plain(self, "staleness", "cycle", "late_after_s")
        for name in ("staleness", "cycle"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"DelayedGlobal: {name} must be an integer of at least 1. Received: {value!r}")
        if self.apply not in _APPLY:
            raise ValueError(f"DelayedGlobal: apply must be one of {_APPLY}. Received: {self.apply!r}")
        for name in ("sparse", "reproducible"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"DelayedGlobal: {name} must be a bool. Received: {getattr(self, name)!r}")

        late = self.late_after_s
        if late is not None and not (isinstance(late, (int, float)) and 0 < late < math.inf):
            raise ValueError(f"DelayedGlobal: late_after_s must be a positive number or None. Received: {late!r}")
        if late is not None and self.reproducible:
            raise ValueError(
                "DelayedGlobal: late_after_s does not work with reproducible=True, because which ranks are late "
                f"differs from run to run. Received: late_after_s={late!r}"
            )
