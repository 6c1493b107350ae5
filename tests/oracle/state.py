"""What a job has at one moment, as the model knows it."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class TableState:
    """A table; row i is that of the i-th key of its pool.

    Attributes:
      present: bool[keys]: whether there is a row.
      rows: float32[keys, dim]; of absent keys their initial values.
      slots: float32[keys, dim] or [keys, 1] each; of absent keys their initial values.
    """

    present: np.ndarray
    rows: np.ndarray
    slots: list[np.ndarray]


@dataclasses.dataclass
class State:
    """A job between two operations.

    Attributes:
      tables: One for each table.
      dense: float32[1, n].
      dense_slots: Of the wrapped optimizer.
      step: Committed steps of the tables.
      iterations: Updates that the optimizer counts.
      rate: Learning rate.
      pending: Gradients of tables that a delayed schedule has not applied: of each step, of each table a dict from
        position in the pool to gradient; the learning rate; the number of the update.
      in_cycle: Steps since the delayed schedule drained.
      saved: Tables, dense weights, iterations and rate that `save_weights` wrote, or None.
    """

    tables: list[TableState]
    dense: np.ndarray
    dense_slots: list[np.ndarray]
    step: int
    iterations: int
    rate: float
    pending: list[tuple[list[dict[int, np.ndarray]], float, int]] = dataclasses.field(default_factory=list)
    in_cycle: int = 0
    saved: Any = None

    def copy(self) -> State:
        """A deep copy."""
        return copy.deepcopy(self)
