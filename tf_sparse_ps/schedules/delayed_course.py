"""A delayed schedule at work: what a step does, and what its letters carry.

One step, in this order: the weights move by the local gradient; the gradient is put on its way; global gradients that
are due, or have arrived, take the places of their local ones; at the end of a cycle the ranks meet.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tf_sparse_ps import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.schedules import delayed_rules
from tf_sparse_ps.schedules.courier import Blanks, Courier
from tf_sparse_ps.schedules.protocol import Course
from tf_sparse_ps.training import rank_weight

if TYPE_CHECKING:
    from tf_sparse_ps.schedules.delayed_global import DelayedGlobal
    from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer
    from tf_sparse_ps.training.sparse_step import SparseStep


class Delivered(NamedTuple):
    """What comes back of a local step, in the order in which it travels; the tables' tensors follow.

    Attributes:
      number: int64, of the local step; `_BLANK` or `_CLOSING` when there is none.
      rate: Its learning rate.
      weight: This rank's.
      own: float32[n], this rank's gradient.
      share: What `Rule.local` returned.
      sums: float32[n + 3 + h]: sums over the ranks of weight times gradient, of weight, of weight times learning rate,
        of closing ranks, and of weight times the tables' hyperparameters.
    """

    number: tf.Tensor
    rate: tf.Tensor
    weight: tf.Tensor
    own: tf.Tensor
    share: tf.Tensor
    sums: tf.Tensor

    @classmethod
    def specs(cls, rule: delayed_rules.Rule, sparse: SparseStep | None) -> Delivered:
        """Types and shapes. `sparse`: whose hyperparameters travel."""
        hyper = 0 if sparse is None else sum(sparse.hyper_sizes())
        scalar, vector = tf.TensorSpec([], tf.float32), tf.TensorSpec([rule.size], tf.float32)
        share, sums = tf.TensorSpec([rule.share_size], tf.float32), tf.TensorSpec([rule.size + 3 + hyper], tf.float32)
        return cls(tf.TensorSpec([], tf.int64), scalar, scalar, vector, share, sums)


# In place of a local step's number. Where late ranks are not waited for: this rank was late; and: it is at the end of a
# cycle, and sends no more until all ranks are there.
_BLANK, _CLOSING = -1, -2


@dataclasses.dataclass(frozen=True)
class _Made:
    """What the first step made.

    Attributes:
      rule: Of the dense variables.
      sparse: That step's step of the tables, the pattern of the others.
      committed: The last step of the tables before it.
      courier: Carries letters.
    """

    rule: delayed_rules.Rule
    sparse: SparseStep | None
    committed: int
    courier: Courier

    @property
    def tables(self) -> list[str]:
        """That are trained."""
        return self.tables_of(self.sparse)

    @staticmethod
    def tables_of(sparse: SparseStep | None) -> list[str]:
        """That a step trains."""
        return [] if sparse is None else sparse.update.paths


class DelayedCourse(Course):
    """See `DelayedGlobal`. For jobs of several ranks."""

    delays = True

    def __init__(
        self, options: DelayedGlobal, owner: DistributedOptimizer, collectives: Collectives, name: str
    ) -> None:
        """See `Schedule.start`."""
        super().__init__(owner, collectives, name)
        self._options = options
        self.delays_tables = options.sparse
        self._first: _Made | None = None
        self._also: Callable[[], Sequence[Any]] = tuple
        self._drain: Callable[[], None] | None = None
        counter = _keras.local_variable
        self._sent = counter(0, "int64", "delayed_sent")  # letters: the local steps made
        self._back = counter(0, "int64", "delayed_back")  # of them, those whose global gradients have come
        self._taken = counter(0, "int64", "delayed_taken")  # global gradients
        self._without_own = counter(0, "int64", "delayed_without_own")  # of them, those this rank was late for
        self._discarded = counter(0, "int64", "delayed_discarded")
        self._most_late = counter(0, "int64", "delayed_most_late")
        self._in_cycle = counter(0, "int64", "delayed_in_cycle")  # iterations
        self._with_samples = counter(0.0, "float32", "delayed_with_samples")  # of those, with a weight above 0
        self._zero = counter(0, "int64", "delayed_zero")
        self._seen = counter(tf.cast(owner.iterations, tf.float32), "float32", "delayed_seen")  # by the rule

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`."""
        self._also = variables

    # --- a step ---

    def step(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        rate: tf.Tensor,
        weight: tf.Tensor,
        sparse: SparseStep | None,
    ) -> None:
        """Makes one. In a graph, or eagerly.

        Args:
          gradients: Dense tensors, this rank's own.
          variables: Whose they are.
          rate: Learning rate.
          weight: Of this rank, from `rank_weight.allowed`.
          sparse: The step of the tables that is to be delayed, if there is one.
        """
        made = self._begin(variables, sparse)
        rule, courier = made.rule, made.courier
        rate = tf.cast(rate, tf.float32)
        # A rank without samples moves by nothing, not even by NaN.
        gradient = tf.where(weight > 0.0, rule.flat(gradients), 0.0)
        number = self._sent.read_value()
        share = rule.local(gradient, rate, self._seen)
        courier.put([number, rate, weight, gradient, share, *([] if sparse is None else sparse.tensors())])
        sent, in_cycle = number + 1, self._in_cycle + 1
        self._sent.assign(sent)
        self._in_cycle.assign(in_cycle)
        self._with_samples.assign_add(tf.cast(weight > 0.0, tf.float32))
        self._owner.iterations.assign_add(1)
        ends = in_cycle >= self._options.cycle
        if self._options.late_after_s is None:
            self._take(tf.where(ends, sent, sent - self._options.staleness), sent, tf.constant(False))
        else:
            tf.cond(ends, self._close, lambda: None)
            self._take(sent - self._options.staleness, sent, ends)
        tf.cond(ends, self._average, lambda: None)

    def drain(self) -> None:
        """See `Course.drain`. Takes what is outstanding, and ends the cycle."""
        if self._first is None or int(self._in_cycle) == 0:
            return
        if self._drain is None:
            # Not the method itself: TensorFlow counts traces by code object, and would warn of retracing.
            self._drain = tf.function(functools.partial(self._drained), autograph=False)
        self._drain()

    def _drained(self) -> None:
        sent, late = self._sent.read_value(), self._options.late_after_s is not None
        if late:
            self._close()
        self._take(sent, sent, tf.constant(late))
        self._average()

    def outstanding(self) -> bool:
        """Whether ranks differ, until `drain`."""
        return self._first is not None and int(self._in_cycle) > 0

    def report(self) -> dict[str, Any]:
        """See `DistributedOptimizer.schedule_report`."""
        counters = {
            "iterations": self._sent,
            "global_gradients": self._taken,
            "discarded": self._discarded,
            "without_own": self._without_own,
            "most_late": self._most_late,
        }
        return {name: int(counter) for name, counter in counters.items()}

    # --- first use ---

    @property
    def _made(self) -> _Made:
        assert self._first is not None  # by the first step
        return self._first

    def _begin(self, variables: Sequence[Any], sparse: SparseStep | None) -> _Made:
        if self._first is None:
            narrow = [(one.name, one.dtype) for one in variables if tf.as_dtype(one.dtype) != tf.float32]
            if narrow:
                raise ValueError(f"DelayedGlobal trains float32 variables. Received: {narrow}")
            inner = self._owner.inner_optimizer
            with tf.init_scope():
                rule = delayed_rules.kind_of(inner)(inner, variables)
                committed = 0 if sparse is None else int(sparse.job.step)
                self._first = _Made(rule, sparse, committed, self._make_courier(rule, sparse))
                self._first.courier.start()
            return self._first
        before, tables = [one.name for one in self._made.rule.variables], self._made.tables
        now, tables_now = [_keras.tf_variable(one).name for one in variables], _Made.tables_of(sparse)
        if (now, tables_now) != (before, tables):
            raise ValueError(
                "DelayedGlobal needs gradients of the same variables and tables in every step: those of others are on "
                f"their way. Received: {now}, {tables_now}; before: {before}, {tables}"
            )
        return self._first

    def _make_courier(self, rule: delayed_rules.Rule, sparse: SparseStep | None) -> Courier:
        specs, tables = list(self._specs(rule, sparse)), [] if sparse is None else sparse.specs()
        letter, delivery = [*specs[:-1], *tables], [*specs, *(tables if self._options.reproducible else [])]
        blanks = None
        if self._options.late_after_s is not None:
            blanks = Blanks(self._options.late_after_s, lambda closing: self._no_letter(closing=closing), self._outcome)
        return Courier(letter, delivery, self._options.staleness + 1, self._carry, self._in_order, blanks)

    def _specs(self, rule: delayed_rules.Rule, sparse: SparseStep | None) -> Delivered:
        return Delivered.specs(rule, None if self._options.late_after_s is None else sparse)

    # --- ranks that are not in time ---

    def _close(self) -> None:
        """Tells the other ranks that this one has come to the end of the cycle."""
        self._made.courier.put(self._no_letter(closing=True))

    def _no_letter(self, *, closing: bool) -> list[tf.Tensor]:
        """A letter without a local step.

        Of a variable that is 0: TensorFlow would fold constants, and the all-reduce of them with it.
        """
        made = self._made
        specs = list(self._specs(made.rule, made.sparse)[:-1]) + ([] if made.sparse is None else made.sparse.specs())
        zero = self._zero.read_value()
        letter = [tf.fill([size or 0 for size in spec.shape], tf.cast(zero, spec.dtype)) for spec in specs]
        letter[0] += _CLOSING if closing else _BLANK
        return letter

    def _outcome(self, delivery: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Blanks`."""
        delivered = Delivered(*delivery[:_DENSE])
        over = self._over(delivered)
        return tf.equal(delivered.number, _CLOSING) & ~over, over | tf.equal(self._weights(delivered), 0.0)

    def _over(self, delivered: Delivered) -> tf.Tensor:
        """Whether all ranks are closing."""
        return delivered.sums[self._made.rule.size + 2] >= float(self._collectives.size)

    def _weights(self, delivered: Delivered) -> tf.Tensor:
        return delivered.sums[self._made.rule.size]

    # --- beside the steps ---

    def _carry(self, letter: list[tf.Tensor], slot: int) -> list[tf.Tensor]:
        """Adds up the ranks' gradients. Letters may overtake each other here."""
        number, rate, weight, gradient, share, *tables = letter
        closing = tf.cast(tf.equal(number, _CLOSING), tf.float32)
        parts = [rank_weight.weighted(gradient, weight), [weight, weight * rate, closing]]
        if self._made.sparse is not None and self._options.late_after_s is not None:
            parts += [weight * one for one in self._made.sparse.of(tables).update.hyper]
        (sums,) = self._collectives.allreduce([tf.concat(parts, axis=0)], f"{self._name}.delayed.{slot}", average=False)
        return [*Delivered(number, rate, weight, gradient, share, sums), *tables]

    def _in_order(self, carried: list[tf.Tensor]) -> list[tf.Tensor]:
        """Makes the step of the tables; or, where a run is to be reproducible, does no more than reduce for it."""
        made = self._made
        if made.sparse is None:
            return carried
        dense, step = carried[:_DENSE], made.sparse.of(carried[_DENSE:])
        if self._options.late_after_s is not None:
            step = self._with_mean_hyper(step, Delivered(*dense))
        if not self._options.reproducible:
            with tf.control_dependencies(step.wait(step.apply(step.number()))):
                return [tf.identity(one) for one in dense]
        reduced = step.reduce(made.committed + dense[0] + 1)
        return [*dense, *step.with_gradients(reduced).tensors()]

    def _with_mean_hyper(self, step: SparseStep, delivered: Delivered) -> SparseStep:
        """Hyperparameters of the ranks that were in time: a leader may not be one, and all must use the same."""
        weights = self._weights(delivered)
        sums = tf.split(delivered.sums[self._made.rule.size + 3 :], step.hyper_sizes())
        means = [rank_weight.mean(one, weights) for one in sums]
        return step.with_hyper(
            [tf.where(weights > 0.0, mean, own) for mean, own in zip(means, step.update.hyper, strict=True)]
        )

    # --- global gradients ---

    def _take(self, due: tf.Tensor, sent: tf.Tensor, ends: tf.Tensor) -> None:
        """Takes deliveries and corrects weights.

        Args:
          due: Those of local steps before this number are waited for; others are taken if they have come.
          sent: Local steps made.
          ends: Until all ranks are closing.
        """
        courier = self._made.courier

        def more(back: tf.Tensor, over: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            needed = (back < due) | (ends & ~over)
            return needed if self._options.reproducible else needed | ((courier.waiting() > 0) & ~over)

        def take(back: tf.Tensor, _: tf.Tensor, n: tf.Tensor, *newest: tf.Tensor) -> tuple[tf.Tensor, ...]:
            delivered = courier.take()
            self._apply_tables(delivered[_DENSE:])
            dense = Delivered(*delivered[:_DENSE])
            own = dense.number >= 0
            # Not where nobody had anything.
            some = own | (self._weights(dense) > 0.0)
            if self._options.apply == "newest":
                kept = [tf.where(some, one, other) for one, other in zip(dense, newest, strict=True)]
            else:
                kept = []
                tf.cond(some, lambda: self._correct(dense, sent), lambda: None)
            return (back + tf.cast(own, tf.int64), self._over(dense), n + tf.cast(some, tf.int64), *kept)

        first = (self._back.read_value(), tf.constant(False), tf.constant(0, tf.int64))
        if self._options.apply == "all":
            back, _, n = tf.while_loop(more, take, first, parallel_iterations=1)
        else:
            specs = self._specs(self._made.rule, self._made.sparse)
            nothing = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
            back, _, n, *newest = tf.while_loop(more, take, (*first, *nothing), parallel_iterations=1)
            tf.cond(n > 0, lambda: self._correct(Delivered(*newest), sent), lambda: None)
            self._discarded.assign_add(tf.maximum(n - 1, 0))
        self._back.assign(back)
        self._taken.assign_add(n)

    def _correct(self, delivered: Delivered, sent: tf.Tensor) -> None:
        rule, weights = self._made.rule, self._weights(delivered)
        gradients, weighted_rate = delivered.sums[: rule.size], delivered.sums[rule.size + 1]
        rank_weight.check([weights], delivered.weight, None)
        late = tf.where(delivered.number >= 0, sent - 1 - delivered.number, 0)
        self._most_late.assign(tf.maximum(self._most_late, late))
        self._without_own.assign_add(tf.cast(delivered.number < 0, tf.int64))
        rate = tf.where(weights > 0.0, rank_weight.mean(weighted_rate, weights), delivered.rate)
        mean = rank_weight.mean(gradients, weights)
        rule.correct(delivered.own, delivered.share, delivered.rate, mean, rate, tf.cast(late, tf.float32), self._seen)
        self._seen.assign_add(1.0)

    def _apply_tables(self, tensors: Sequence[tf.Tensor]) -> None:
        """Where a run is to be reproducible: makes the step of the tables that was reduced beside the steps."""
        if self._made.sparse is None or not tensors:
            return
        step = self._made.sparse.of(tensors)
        step.wait(step.apply_reduced(step.number(), step.gradients))

    # --- the end of a cycle ---

    def _average(self) -> None:
        """Makes ranks equal: parameters, slots and what is registered, averaged by iterations done with samples."""
        rule = self._made.rule
        slots = [slot for slots in rule.slots for slot in slots]
        also = [_keras.tf_variable(one) for one in self._also()]
        variables = [*rule.variables, *slots, *(one for one in also if one.dtype.is_floating), self._seen]
        # A number of at most 1, so that where all ranks have done the same, products with it are exact.
        done = self._with_samples / tf.cast(self._in_cycle, tf.float32)
        flat = tf.concat([tf.reshape(tf.cast(one, tf.float32), [-1]) for one in variables], axis=0)
        sent = tf.concat([rank_weight.weighted(flat, done), [done]], axis=0)
        (sums,) = self._collectives.allreduce([sent], f"{self._name}.cycle", average=False)
        # No rank has done anything: ranks are as equal as they were.
        means = tf.where(sums[-1] > 0.0, tf.math.divide_no_nan(sums[:-1], sums[-1]), flat)
        pieces = tf.split(means, [one.shape.num_elements() for one in variables])
        for variable, piece in zip(variables, pieces, strict=True):
            variable.assign(tf.cast(tf.reshape(piece, variable.shape), variable.dtype))
        self._in_cycle.assign(0)
        self._with_samples.assign(0.0)


_DENSE = len(Delivered._fields)
