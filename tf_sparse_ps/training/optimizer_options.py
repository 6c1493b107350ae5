"""`OptimizerOptions`: what the parts of a step read of the `DistributedOptimizer` that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tf_sparse_ps.schedules.schedule import Schedule


class OptimizerOptions(Protocol):
    """The options of a `DistributedOptimizer`, which documents them. They are read when a step is traced."""

    inner_optimizer: Any
    sparse_reduction: str
    topology: str
    wire: str
    broadcast: bool

    @property
    def schedule(self) -> Schedule: ...
    @property
    def iterations(self) -> Any: ...
    @property
    def loss_scale_factor(self) -> float: ...
    def build(self, variables: Sequence[Any]) -> None: ...
