"""A delayed schedule at work: what a step does. `in_flight_gradients` has what is done beside the steps.

One step, in this order: the weights move by the local gradient; the gradient is put on its way; global gradients that
are due, or have arrived, take the places of their local ones; at the end of a cycle the ranks meet.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.reduction import dense_mean, rank_weight
from tf_sparse_ps.reduction.gradients import DenseGradient, mean_of
from tf_sparse_ps.schedules import delayed_rules
from tf_sparse_ps.schedules.delayed_options import DelayedOptions
from tf_sparse_ps.schedules.delayed_rules import Correction
from tf_sparse_ps.schedules.in_flight_gradients import InFlightGradients, ReducedStep
from tf_sparse_ps.schedules.schedule import LocalStep, ScheduleState

if TYPE_CHECKING:
    from tf_sparse_ps.reduction.sparse_step import SparseStep


@dataclasses.dataclass(frozen=True)
class _Made:
    """What the first step made.

    Attributes:
      rule: Of the dense variables.
      in_flight: Their gradients, on their way.
    """

    rule: delayed_rules.Rule
    in_flight: InFlightGradients


class DelayedState(ScheduleState):
    """See `DelayedGlobal`. For jobs of several ranks."""

    ranks_part = True

    def __init__(self, options: DelayedOptions, optimizer: Any, collectives: Collectives, name: str) -> None:
        """See `Schedule.start`."""
        super().__init__(optimizer, collectives, name)
        self._options = options
        self.delays_tables = options.sparse
        self._first: _Made | None = None
        self._also: Callable[[], Sequence[Any]] = tuple
        self._drain: Callable[[], None] | None = None
        counter = _keras.local_variable
        self._sent = counter(0, "int64", "delayed_sent")  # local steps made
        self._back = counter(0, "int64", "delayed_back")  # of them, those whose global gradients have come
        self._taken = counter(0, "int64", "delayed_taken")  # global gradients
        self._without_own = counter(0, "int64", "delayed_without_own")  # of them, those this rank was late for
        self._discarded = counter(0, "int64", "delayed_discarded")
        self._most_late = counter(0, "int64", "delayed_most_late")
        self._in_cycle = counter(0, "int64", "delayed_in_cycle")  # iterations
        self._with_samples = counter(0.0, "float32", "delayed_with_samples")  # of those, with a weight above 0
        self._seen = counter(tf.cast(optimizer.iterations, tf.float32), "float32", "delayed_seen")  # by the rule

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`."""
        self._also = variables

    # --- a step ---

    def reduce(self, step: LocalStep) -> list[tf.Tensor]:
        """See `ScheduleState.reduce`: of dense gradients nothing yet."""
        _refuse_reduced(self._options, step.dense)
        self.dense_bytes = sum(one.bytes for one in step.dense if one.value is not None)
        if step.tables is None or self.delays_tables:
            return []
        _warn_of_synchronous_tables(self._options)
        return [step.tables.reduce_and_commit(step.dense, [])]

    def update(self, step: LocalStep) -> None:
        """Moves the dense weights by this rank's own gradients, sends those, and takes global ones that have come."""
        own = [one for one in step.dense if one.value is not None]
        tables = step.tables if self.delays_tables else None
        self._step([one.value for one in own], [one.variable for one in own], step.rate, step.weight, tables)

    def _step(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        rate: tf.Tensor,
        weight: tf.Tensor,
        sparse: SparseStep | None,
    ) -> None:
        made = self._begin(variables, sparse)
        rule, in_flight = made.rule, made.in_flight
        rate = tf.cast(rate, tf.float32)
        # A rank without samples moves by nothing, not even by NaN.
        present = tf.cast(weight > 0.0, tf.float32)
        own = [rank_weight.weighted(one, present) for one in gradients]
        number = self._sent.read_value()
        share = rule.local(own, rate, self._seen)
        put = in_flight.send(number, rate, weight, own, share, sparse)
        # What is received below may change tables: not before this step has looked its rows up.
        with tf.control_dependencies([] if put is None else [put]):  # None: eagerly
            sent = number + 1
        in_cycle = self._in_cycle + 1
        self._sent.assign(sent)
        self._in_cycle.assign(in_cycle)
        self._with_samples.assign_add(tf.cast(weight > 0.0, tf.float32))
        self._optimizer.iterations.assign_add(1)
        ends = in_cycle >= self._options.cycle
        if self._options.late_after_s is None:
            self._take(tf.where(ends, sent, sent - self._options.staleness), sent, tf.constant(False))
        else:
            tf.cond(ends, in_flight.close, lambda: None)
            self._take(sent - self._options.staleness, sent, ends)
        tf.cond(ends, self._average, lambda: None)

    def drain(self) -> None:
        """See `ScheduleState.drain`. Takes what is outstanding, and ends the cycle."""
        if self._first is None or int(self._in_cycle) == 0:
            return
        if self._drain is None:
            # Not the method itself: TensorFlow counts traces by code object, and would warn of retracing.
            self._drain = tf.function(functools.partial(self._drained), autograph=False)
        self._drain()

    def _drained(self) -> None:
        sent, late = self._sent.read_value(), self._options.late_after_s is not None
        if late:
            self._made.in_flight.close()
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
            constrained = [(_keras.variable_name(one), one.constraint) for one in variables if one.constraint]
            if constrained:
                raise ValueError(
                    "DelayedGlobal cannot keep constraints: a correction that comes later would change weights that a "
                    f"constraint has moved since. Received: {constrained}"
                )
            inner = self._optimizer
            with tf.init_scope():
                rule = delayed_rules.kind_of(inner)(inner, variables)
                self._first = _Made(rule, InFlightGradients(self._options, rule, sparse, self._collectives, self._name))
            return self._first
        before, now = (
            [one.name for one in self._made.rule.variables],
            [_keras.tf_variable(one).name for one in variables],
        )
        tables_before, tables = _tables_of(self._made.in_flight.sparse), _tables_of(sparse)
        if (now, tables) != (before, tables_before):
            raise ValueError(
                "DelayedGlobal needs gradients of the same variables and tables in every step: those of others are on "
                f"their way. Received: {now}, {tables}; before: {before}, {tables_before}"
            )
        return self._first

    # --- global gradients ---

    def _take(self, due: tf.Tensor, sent: tf.Tensor, ends: tf.Tensor) -> None:
        """Takes results and corrects weights.

        Args:
          due: Those of local steps before this number are waited for; others are taken if they have come.
          sent: Local steps made.
          ends: Until all ranks are closing.
        """
        in_flight = self._made.in_flight

        def more(back: tf.Tensor, over: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            needed = (back < due) | (ends & ~over)
            return needed if self._options.reproducible else needed | ((in_flight.waiting() > 0) & ~over)

        def take(back: tf.Tensor, _: tf.Tensor, n: tf.Tensor, *newest: tf.Tensor) -> tuple[tf.Tensor, ...]:
            result = in_flight.receive()
            own = result.number >= 0
            # Not where nobody had anything.
            some = own | (in_flight.weights(result) > 0.0)
            if self._options.apply == "newest":
                kept = [tf.where(some, one, other) for one, other in zip(tf.nest.flatten(result), newest, strict=True)]
            else:
                kept = []
                tf.cond(some, lambda: self._correct(result, sent), lambda: None)
            return (back + tf.cast(own, tf.int64), in_flight.is_last(result), n + tf.cast(some, tf.int64), *kept)

        first = (self._back.read_value(), tf.constant(False), tf.constant(0, tf.int64))
        if self._options.apply == "all":
            back, _, n = tf.while_loop(more, take, first, parallel_iterations=1)
        else:
            nothing = [tf.zeros(spec.shape, spec.dtype) for spec in tf.nest.flatten(in_flight.specs)]
            back, _, n, *newest = tf.while_loop(more, take, (*first, *nothing), parallel_iterations=1)
            result = tf.nest.pack_sequence_as(in_flight.specs, newest)
            tf.cond(n > 0, lambda: self._correct(result, sent), lambda: None)
            self._discarded.assign_add(tf.maximum(n - 1, 0))
        self._back.assign(back)
        self._taken.assign_add(n)

    def _correct(self, result: ReducedStep, sent: tf.Tensor) -> None:
        rule, weights = self._made.rule, self._made.in_flight.weights(result)
        weighted_rate = result.sums[rule.size + 1]
        rank_weight.check([weights], result.weight, None)
        late = tf.where(result.number >= 0, sent - 1 - result.number, 0)
        self._most_late.assign(tf.maximum(self._most_late, late))
        self._without_own.assign_add(tf.cast(result.number < 0, tf.int64))
        rate = tf.where(weights > 0.0, rank_weight.mean(weighted_rate, weights), result.rate)
        means = _ops.mean_split(result.own, result.sums, weights)
        late = tf.cast(late, tf.float32)
        rule.correct(Correction(result.own, result.share, result.rate, means, rate, late, self._seen))
        self._seen.assign_add(1.0)

    # --- the end of a cycle ---

    def _average(self) -> None:
        """Makes ranks equal: parameters, slots and what is registered, averaged by iterations done with samples."""
        rule = self._made.rule
        slots = [slot for slots in rule.slots for slot in slots]
        # A frozen table's anchor is no parameter either; tables are equal without it.
        also = [_keras.tf_variable(one) for one in self._also() if binding_of(one) is None]
        variables = [*rule.variables, *slots, *(one for one in also if one.dtype.is_floating), self._seen]
        # A number of at most 1, so that where all ranks have done the same, products with it are exact.
        done = self._with_samples / tf.cast(self._in_cycle, tf.float32)
        values = [tf.cast(one, tf.float32) for one in variables]
        agreement = None if self.make_agreement is None else self.make_agreement()
        packing = dense_mean.WeightedPacking(values, done, dense_mean.CONCATENATE_ALL, agreement=agreement)
        means, total = packing.means(self._collectives.allreduce(packing.buffers, f"{self._name}.cycle", average=False))
        agreed = [] if agreement is None else agreement.check(means)
        with tf.control_dependencies(agreed):
            total = tf.identity(total)
        for variable, value, mean in zip(variables, values, means, strict=True):
            # No rank has done anything: ranks are as equal as they were.
            variable.assign(tf.cast(tf.where(total > 0.0, mean, value), variable.dtype))
        self._in_cycle.assign(0)
        self._with_samples.assign(0.0)


def _tables_of(sparse: SparseStep | None) -> list[str]:
    return [] if sparse is None else [table.path for table in sparse.update.tables]


def _refuse_reduced(options: DelayedOptions, dense: Sequence[DenseGradient]) -> None:
    """Raises ValueError, with the reason, for gradients that are not this rank's own."""
    for one in dense:
        if one.big:
            wrong = "IndexedSlices of a large variable. Use tsps.Embedding for it"
        elif one.value is not None and mean_of(one.value) is not None:
            wrong = "the mean that a DistributedGradientTape has made. Use tf.GradientTape"
        else:
            continue
        raise ValueError(f"{options} steps with a rank's own gradients. Received for {one.variable.name}: {wrong}")


def _warn_of_synchronous_tables(options: DelayedOptions) -> None:
    """Says that little is gained where dense gradients are delayed and those of tables are not."""
    warnings.warn(
        f"{options}: the step of the tables is synchronous, so that ranks wait for each other in every step. "
        "sparse=True delays it, too.",
        stacklevel=2,
    )
