"""`OptimizerOptions`: the options of a `DistributedOptimizer`, as the modules that build its steps see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tf_sparse_ps.schedules import Schedule


class OptimizerOptions(Protocol):
    """The options of a `DistributedOptimizer`, which documents them, and the optimizer that it wraps."""

    @property
    def inner_optimizer(self) -> Any: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def sparse_reduction(self) -> str: ...
    @property
    def topology(self) -> str: ...
    @property
    def wire(self) -> str: ...
    @property
    def broadcast(self) -> bool: ...
    @property
    def iterations(self) -> Any: ...
    @property
    def loss_scale_factor(self) -> float: ...
    def build(self, variables: Sequence[Any]) -> None: ...
