"""Ranks see in every step that they agree on what must be equal on all of them, and end with a name where they do not.

A step's facts are the number of the step, the versions of the tables, the hyperparameters, and the values of dense
weights. Their digest travels with an exchange that the step has anyway: with the statements of a step of tables, or
with the sum of the dense gradients. Where digests differ, all ranks refuse the step, and one more exchange tells them
which fact it is. docs/protocol.md has the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives

# For tests: what finds differences between ranks has a control, which compares nothing.
compared = True

_NIBBLES = 16  # of a digest
TAIL = 2 * _NIBBLES  # numbers that a digest takes in a sum of dense gradients

SAME_PROGRAM = "Every rank must run the same program, with the same options"
SAME_RATE = (
    "Set it on all ranks alike: put tsps.callbacks.MetricAverage before callbacks that change it, and give every rank "
    "these callbacks"
)
SAME_ROWS = (
    "A write outside of steps must be made on all ranks, with the same values. After a write on one rank alone, give "
    "fit tsps.callbacks.BroadcastVariables(root=that rank), or restore a checkpoint"
)
SAME_WEIGHTS = (
    "Weights must be set on all ranks, to the same values. After one rank alone has set them, give fit "
    "tsps.callbacks.BroadcastVariables(root=that rank), or restore a checkpoint"
)
_REMEDIES = (SAME_PROGRAM, SAME_RATE, SAME_ROWS, SAME_WEIGHTS)


@dataclasses.dataclass(frozen=True)
class _Name:
    """A fact's name.

    Attributes:
      text: For messages.
      shown: "i", "f" or "h", as `_ops.explain_difference` has it.
      remedy: One of `_REMEDIES`.
    """

    text: str
    shown: str
    remedy: str


class Agreement:
    """The facts of one step. In a graph, or eagerly; every rank has the same ones, in the same order."""

    def __init__(self, collectives: Collectives, name: str, seed: Any) -> None:
        """Has no facts yet.

        Args:
          collectives: Of the ranks that are to agree.
          name: What the operation that names a difference begins with.
          seed: int64, the step, or the number of updates.
        """
        self._collectives, self._operation = collectives, f"{name}.facts"
        self._seed = tf.cast(seed, tf.int64)
        self._numbers: list[tuple[list[_Name], Any]] = []
        self._reals: list[tuple[list[_Name], tf.Tensor]] = []
        self._values: list[tuple[_Name, Any]] = []
        self._made: _ops.Facts | None = None
        self._sums: tf.Tensor | None = None

    def numbers(self, names: Sequence[str], values: Any, remedy: str, *, shown: str = "i") -> None:
        """int64, as many as there are names. Those that stand for something else are not `shown` in messages: "h"."""
        self._numbers.append(([_Name(name, shown, remedy) for name in names], values))

    def reals(self, names: Sequence[str], values: tf.Tensor, remedy: str) -> None:
        """float32, of as many elements as there are names."""
        self._reals.append(([_Name(name, "f", remedy) for name in names], tf.cast(values, tf.float32)))

    def values(self, name: str, value: Any, remedy: str) -> None:
        """A tensor, of which a digest is compared."""
        self._values.append((_Name(name, "h", remedy), value))

    @property
    def digest(self) -> tf.Tensor:
        """int64: what travels."""
        return self._facts.digest if compared else tf.zeros([], tf.int64)

    @property
    def _facts(self) -> _ops.Facts:
        if self._made is None:
            numbers = tf.concat([tf.cast(values, tf.int64) for names, values in self._numbers if names], 0)
            values = [value for _, value in self._values]
            self._made = _ops.facts(self._seed, numbers, [value for _, value in self._reals], values)
        return self._made

    def explained(self, verdict: tf.Tensor) -> tf.Tensor:
        """The verdict on a step; if it is that ranks differ, with the name of what does. On all ranks.

        Args:
          verdict: uint8[n], the same on all ranks.
        """
        if not compared:
            return verdict
        facts = self._facts.facts  # outside of the branch, so that all of it is of this step
        differ = tf.equal(verdict[0], _ops.RANKS_DIFFER[0])
        result: tf.Tensor = tf.cond(differ, lambda: self._explain(verdict, facts), lambda: tf.identity(verdict))
        return result

    def _explain(self, verdict: tf.Tensor, facts: tf.Tensor) -> tf.Tensor:
        (gathered,) = self._collectives.allgather([facts], self._operation)
        names = [name for several, _ in (*self._numbers, *self._reals) for name in several]
        names += [name for name, _ in self._values]
        return _ops.explain_difference(
            verdict,
            gathered,
            [name.text for name in names],
            "".join(name.shown for name in names),
            _REMEDIES,
            [_REMEDIES.index(name.remedy) for name in names],
        )

    # --- where there is a sum over the ranks, and no exchange of statements ---

    @property
    def tail(self) -> tf.Tensor:
        """float32[TAIL]: what a sum over the ranks shows equal digests by. Its numbers are small, so sums are exact."""
        shifts = tf.range(0, 4 * _NIBBLES, 4, tf.int64)
        nibbles = tf.bitwise.bitwise_and(tf.bitwise.right_shift(self.digest, shifts), tf.constant(15, tf.int64))
        numbers = tf.cast(nibbles, tf.float32)
        return tf.concat([numbers, numbers * numbers], 0)

    def take(self, sums: tf.Tensor) -> None:
        """Takes the sum of all ranks' `tail`, for `check`."""
        self._sums = sums

    @property
    def sums(self) -> tf.Tensor:
        """What `take` was given; zeros before."""
        return tf.zeros([TAIL]) if self._sums is None else self._sums

    def check(self, after: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Raises the error that names the difference, on all ranks, if there is one. When it runs.

        Args:
          after: What comes out of the step's other collectives: an error must not come before.

        Returns:
          What the error comes before, in a graph.
        """
        if self._sums is None or not compared:
            return []
        sums, squares = tf.split(tf.cast(self._sums, tf.float64), 2)
        # The squares' mean is the square of the mean of equal numbers alone.
        equal = tf.reduce_all(tf.equal(squares * self._collectives.size, sums * sums))
        good, bad = (tf.constant(list(one), tf.uint8) for one in (_ops.NO_OBJECTIONS, _ops.RANKS_DIFFER))
        verdict = self.explained(tf.cond(equal, lambda: tf.identity(good), lambda: tf.identity(bad)))
        with tf.control_dependencies(list(after)):
            return [_ops.check_step(self._seed, verdict)]


# Makes the facts of what is being done: in the graph in which it is called.
MakeAgreement = Callable[[], Agreement]
