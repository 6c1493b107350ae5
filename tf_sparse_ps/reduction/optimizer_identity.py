"""`OptimizerIdentity`: tells an optimizer from others that train the same tables.

A table's slots are made by one optimizer and mean nothing to another one, whose number of steps is another. A table
therefore records the identity of the optimizer that trained it last, and how many steps that had made. The core refuses
a step of any other (`TspsMakeStep`), unless the table has no slots.
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
_trained: dict[int, set[int]] = {}  # by the numbers of optimizers: tables that were trained in this process


@dataclasses.dataclass(frozen=True)
class SlotsOf:
    """What a table records.

    Attributes:
      table: Its ordinal in the job.
      identity: Of the optimizer that made its slots; 0: any may go on with them.
      steps: That the optimizer had made when it last trained the table.
    """

    table: int
    identity: int
    steps: int


@dataclasses.dataclass(frozen=True)
class Claim:
    """What becomes of tables that an optimizer is about to train for the first time. The root's counts on all ranks.

    Attributes:
      identity: Of the optimizer.
      renewed: Ordinals of tables whose slots start anew: another optimizer has made them.
      refused: Ordinal of a table that the optimizer has trained before and another one since, or None.
      earlier_run: Whether slots that start anew are of an earlier run.
    """

    identity: int
    renewed: frozenset[int]
    refused: int | None
    earlier_run: bool


class OptimizerIdentity:
    """Of one wrapped optimizer, however often it is wrapped.

    Attributes:
      number: 1 to 2**62, the same on all ranks once it trains tables.
    """

    def __init__(self) -> None:
        """Draws a number."""
        self.number = secrets.randbelow(_MOST) + 1
        self._variable: Any = None
        self._tables: set[int] = set()  # that it has trained in this process

    @classmethod
    def of(cls, inner: Any) -> OptimizerIdentity:
        """The identity of a Keras optimizer."""
        return _of_inner.setdefault(inner, cls())

    def take(self, number: int) -> None:
        """The optimizer is the one of this number: its state was loaded, or the root says so."""
        self.number = number
        if self._variable is not None:
            self._variable.assign(number)

    def trains_beside(self, number: int) -> bool:
        """Whether it has trained tables in this process, and so has another optimizer, of this number."""
        return self.number in _trained and number != self.number and number in _trained

    def trains(self, tables: Sequence[int]) -> None:
        """Notes that it is bound to tables, by their ordinals."""
        self._tables.update(tables)
        _trained.setdefault(self.number, set()).update(tables)

    def step(self, iterations: Any) -> tf.Tensor:
        """What a step says of its optimizer, int64[2]: its number, and how many steps it has made with this one.

        Read when a function runs, not when it is traced: a checkpoint may be restored in between.

        Args:
          iterations: Of the optimizer, before the step, int64.
        """
        if self._variable is None:
            with tf.init_scope():
                self._variable = _keras.local_variable(self.number, "int64", "tsps_optimizer_identity")
        return tf.stack([tf.identity(self._variable), tf.cast(iterations, tf.int64) + 1])

    def claim(self, tables: Sequence[SlotsOf], iterations: int) -> Claim:
        """What is to become of tables that it trains from now on.

        An optimizer whose number of steps was loaded, and with it its variables, goes on with slots that were loaded,
        or left by an earlier run, and were made up to that step: it takes the identity of the one that made them.

        Args:
          tables: What they record.
          iterations: Steps that this optimizer has made.
        """
        number = self.number
        others = [one for one in tables if one.identity not in (0, number)]
        is_loaded = iterations > 0 and number not in _trained
        of_one = len({one.identity for one in others}) == 1
        if (
            is_loaded
            and of_one
            and all(one.steps <= iterations and one.table not in _trained.get(one.identity, ()) for one in others)
        ):
            number = others[0].identity
        renewed = [one for one in tables if one.identity not in (0, number)]
        refused = next((one.table for one in renewed if one.table in self._tables), None)
        earlier_run = any(one.identity not in _trained for one in renewed)
        return Claim(number, frozenset(one.table for one in renewed), refused, earlier_run)
