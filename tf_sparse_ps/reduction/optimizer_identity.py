"""`OptimizerIdentity`: identifies an optimizer among all optimizers that train the same tables.

The slots of a table are valid only for the optimizer that made them, because another optimizer has made another number
of steps. A table therefore records the identity of the optimizer that trained it last, and the number of its steps. The
core refuses a step of any other optimizer (`TspsMakeStep`), unless the table has no slots.
"""

from __future__ import annotations

import dataclasses
import secrets
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras

_MOST = 1 << 62
_of_inner: weakref.WeakKeyDictionary[Any, OptimizerIdentity] = weakref.WeakKeyDictionary()
_trained: dict[int, set[int]] = {}  # the tables that each optimizer, by its number, has trained in this process


@dataclasses.dataclass(frozen=True)
class SlotsOf:
    """The optimizer that a table records.

    Attributes:
      table: The ordinal of the table in the job.
      identity: The identity of the optimizer that made the slots. 0: any optimizer may use them.
      steps: The number of steps that the optimizer had made when it last trained the table.
    """

    table: int
    identity: int
    steps: int


@dataclasses.dataclass(frozen=True)
class Claim:
    """The decision about the tables that an optimizer starts to train. All ranks follow the claim of the root.

    Attributes:
      identity: The identity of the optimizer.
      renewed: The ordinals of the tables whose slots are reset, because another optimizer has made them.
      refused: The ordinal of a table that this optimizer has trained, and another one since; or None.
      earlier_run: Whether slots that are reset are from an earlier run.
    """

    identity: int
    renewed: frozenset[int]
    refused: int | None
    earlier_run: bool


class OptimizerIdentity:
    """The identity of a Keras optimizer. All wrappers of the optimizer share it.

    Attributes:
      number: 1 to 2**62, the same on all ranks as soon as the optimizer trains tables.
    """

    def __init__(self) -> None:
        """Draws a random number."""
        self.number = secrets.randbelow(_MOST) + 1
        self._variable: Any = None
        self._tables: set[int] = set()  # the tables that the optimizer has trained in this process

    @classmethod
    def of(cls, inner: Any) -> OptimizerIdentity:
        """Returns the identity of a Keras optimizer."""
        return _of_inner.setdefault(inner, cls())

    def take(self, number: int) -> None:
        """Sets the number, because the state of the optimizer was loaded, or to that of the root."""
        self.number = number
        if self._variable is not None:
            self._variable.assign(number)

    def trains_beside(self, number: int) -> bool:
        """Whether both this optimizer and another one, with this number, have trained tables in this process."""
        return self.number in _trained and number != self.number and number in _trained

    def trains(self, tables: Sequence[int]) -> None:
        """Records that the optimizer trains tables, by their ordinals."""
        self._tables.update(tables)
        _trained.setdefault(self.number, set()).update(tables)

    def step(self, iterations: Any) -> tf.Tensor:
        """Returns the optimizer of a step, int64[2]: its number, and its number of steps, including this step.

        A graph reads the number when it runs, because a checkpoint may be restored after it was traced.

        Args:
          iterations: The number of steps of the optimizer before this step, int64.
        """
        if self._variable is None:
            with tf.init_scope():
                self._variable = _keras.local_variable(self.number, "int64", "tsps_optimizer_identity")
        return tf.stack([tf.identity(self._variable), tf.cast(iterations, tf.int64) + 1])

    def claim(self, tables: Sequence[SlotsOf], iterations: int) -> Claim:
        """Decides about tables that the optimizer starts to train.

        If the state of the optimizer was loaded, with its number of steps, it continues with slots that were loaded or
        are from an earlier run, and are not newer than that step. It takes the identity of the optimizer that made
        them.

        Args:
          tables: The records of the tables.
          iterations: The number of steps that this optimizer has made.
        """
        number = self.number
        foreign = [slots for slots in tables if slots.identity not in (0, number)]
        is_loaded = iterations > 0 and number not in _trained
        one_optimizer = len({slots.identity for slots in foreign}) == 1
        if (
            is_loaded
            and one_optimizer
            and all(s.steps <= iterations and s.table not in _trained.get(s.identity, ()) for s in foreign)
        ):
            number = foreign[0].identity
        renewed = [slots for slots in tables if slots.identity not in (0, number)]
        refused = next((slots.table for slots in renewed if slots.table in self._tables), None)
        earlier_run = any(slots.identity not in _trained for slots in renewed)
        return Claim(number, frozenset(slots.table for slots in renewed), refused, earlier_run)
