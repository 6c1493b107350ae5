"""The state of a job at one moment, in the model."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from tests.oracle.policies import Policies


@dataclasses.dataclass
class TableState:
    """A table; row i is that of the i-th key of its pool.

    Attributes:
      present: bool[keys]: whether the table has a row.
      rows: float32[keys, dim]; for absent keys, their initial values.
      slots: float32[keys, dim] or [keys, 1] each; for absent keys, their initial values.
      policies: Eviction and admission, for each node that has a part of the table; empty: the table has neither.
    """

    present: np.ndarray
    rows: np.ndarray
    slots: list[np.ndarray]
    policies: list[Policies] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class State:
    """A job between two operations.

    Attributes:
      tables: The state of each table.
      dense: float32[1, n].
      dense_slots: The slots of the wrapped optimizer.
      step: The number of committed steps of the tables.
      iterations: The number of updates that the optimizer counts.
      rate: The learning rate.
      pending: Gradients of tables that a delayed schedule has not applied. For each step: for each table, a dict from
        position in the pool to gradient; for each table, the number of ids of each position; the learning rate; the
        number of the update.
      in_cycle: The number of steps since the delayed schedule drained.
      saved: Tables, dense weights, iterations and rate that `save_weights` wrote, or None.
    """

    tables: list[TableState]
    dense: np.ndarray
    dense_slots: list[np.ndarray]
    step: int
    iterations: int
    rate: float
    pending: list[tuple[list[dict[int, np.ndarray]], list[Counter[int]], float, int]] = dataclasses.field(
        default_factory=list
    )
    in_cycle: int = 0
    saved: Any = None

    def copy(self) -> State:
        """Returns a deep copy."""
        return copy.deepcopy(self)
