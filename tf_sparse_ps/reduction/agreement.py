"""`Agreement`: compares in every step the facts that must be equal on all ranks, and names a fact that differs.

The facts of a step are its number, the versions of the tables, the hyperparameters, and the values of dense weights.
The digest of the facts travels with an exchange that the step makes anyway: with the statements of a step of tables, or
with the sum of the dense gradients. If the digests differ, all ranks refuse the step, and one more exchange finds the
fact that differs. docs/protocol.md has the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps.collectives import Collectives

# Tests that must find differences between ranks set this to False for their control run.
compared = True

_NIBBLES = 16  # per digest
TAIL = 2 * _NIBBLES  # the number of floats that represent a digest in a sum of dense gradients

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
    "tsps.callbacks.BroadcastVariables(root=that rank), or restore a checkpoint. If no rank has, and the optimizer "
    "computes norms (clipnorm, global_clipnorm, Lamb, Adafactor), set TF_NUM_INTRAOP_THREADS to one number on all "
    "ranks: the last bits of a norm depend on it"
)
_REMEDIES = (SAME_PROGRAM, SAME_RATE, SAME_ROWS, SAME_WEIGHTS)


@dataclasses.dataclass(frozen=True)
class _Name:
    """The name of a fact.

    Attributes:
      text: The name in messages.
      shown: How messages show the value: "i", "f" or "h", as in `_ops.explain_difference`.
      remedy: One of `_REMEDIES`.
    """

    text: str
    shown: str
    remedy: str


class Agreement:
    """The facts of one step. Every rank adds the same facts, in the same order, in a graph or eagerly."""

    def __init__(self, collectives: Collectives, name: str, seed: Any) -> None:
        """Makes an agreement without facts.

        Args:
          collectives: The collectives of the ranks that must agree.
          name: The beginning of the name of the collective that finds a difference.
          seed: The number of the step or of updates, int64.
        """
        self._collectives, self._operation = collectives, f"{name}.facts"
        self._seed = tf.cast(seed, tf.int64)
        self._numbers: list[tuple[list[_Name], Any]] = []
        self._reals: list[tuple[list[_Name], tf.Tensor]] = []
        self._values: list[tuple[_Name, Any]] = []
        self._digested: _ops.Facts | None = None
        self._sums: tf.Tensor | None = None

    def numbers(self, names: Sequence[str], values: Any, remedy: str, *, shown: str = "i") -> None:
        """Adds int64 facts, one for each name. `shown`: "h" if the numbers are hashes, which messages omit."""
        self._numbers.append(([_Name(name, shown, remedy) for name in names], values))

    def reals(self, names: Sequence[str], values: tf.Tensor, remedy: str) -> None:
        """Adds float32 facts, one for each name."""
        self._reals.append(([_Name(name, "f", remedy) for name in names], tf.cast(values, tf.float32)))

    def values(self, name: str, value: Any, remedy: str) -> None:
        """Adds a tensor. Ranks compare its digest."""
        self._values.append((_Name(name, "h", remedy), value))

    @property
    def digest(self) -> tf.Tensor:
        """The digest of all facts, int64."""
        return self._facts.digest if compared else tf.zeros([], tf.int64)

    @property
    def _facts(self) -> _ops.Facts:
        if self._digested is None:
            numbers = tf.concat([tf.cast(values, tf.int64) for names, values in self._numbers if names], 0)
            values = [value for _, value in self._values]
            self._digested = _ops.facts(self._seed, numbers, [value for _, value in self._reals], values)
        return self._digested

    def explained(self, verdict: tf.Tensor) -> tf.Tensor:
        """Adds the name of the fact that differs to the verdict on a step, if ranks differ. Every rank calls it.

        Args:
          verdict: The verdict, uint8[n], the same on all ranks.

        Returns:
          The verdict with the name, uint8[n].
        """
        if not compared:
            return verdict
        facts = self._facts.facts  # read outside of the branch, so that all facts are of this step
        differ = tf.equal(verdict[0], _ops.RANKS_DIFFER[0])
        result: tf.Tensor = tf.cond(differ, lambda: self._explain(verdict, facts), lambda: tf.identity(verdict))
        return result

    def _explain(self, verdict: tf.Tensor, facts: tf.Tensor) -> tf.Tensor:
        (gathered,) = self._collectives.allgather([facts], self._operation)
        names = [name for group, _ in (*self._numbers, *self._reals) for name in group]
        names += [name for name, _ in self._values]
        return _ops.explain_difference(
            verdict,
            gathered,
            [name.text for name in names],
            "".join(name.shown for name in names),
            _REMEDIES,
            [_REMEDIES.index(name.remedy) for name in names],
        )

    # --- for steps with a sum over the ranks and without an exchange of statements ---

    @property
    def tail(self) -> tf.Tensor:
        """The digest as float32[TAIL]: small numbers, whose exact sum over the ranks shows whether all are equal."""
        shifts = tf.range(0, 4 * _NIBBLES, 4, tf.int64)
        nibbles = tf.bitwise.bitwise_and(tf.bitwise.right_shift(self.digest, shifts), tf.constant(15, tf.int64))
        numbers = tf.cast(nibbles, tf.float32)
        return tf.concat([numbers, numbers * numbers], 0)

    def take(self, sums: tf.Tensor) -> None:
        """Sets the sum of all ranks' `tail`, for `check`."""
        self._sums = sums

    @property
    def sums(self) -> tf.Tensor:
        """The sum that `take` has set. Zeros before that."""
        return tf.zeros([TAIL]) if self._sums is None else self._sums

    def check(self, after: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Raises an error that names the fact that differs, if ranks differ, on all ranks. In a graph: when it runs.

        Args:
          after: Results of the step's other collectives. The error comes after all of them.

        Returns:
          Tensors that exist only if there is no error.
        """
        if self._sums is None or not compared:
            return []
        sums, squares = tf.split(tf.cast(self._sums, tf.float64), 2)
        # The mean of squares is the square of the mean if and only if all numbers are equal.
        equal = tf.reduce_all(tf.equal(squares * self._collectives.size, sums * sums))
        good, bad = (tf.constant(list(verdict), tf.uint8) for verdict in (_ops.NO_OBJECTIONS, _ops.RANKS_DIFFER))
        verdict = self.explained(tf.cond(equal, lambda: tf.identity(good), lambda: tf.identity(bad)))
        with tf.control_dependencies(list(after)):
            return [_ops.check_step(self._seed, verdict)]


# A function that makes the agreement of the current step, in the graph in which it is called.
MakeAgreement = Callable[[], Agreement]
