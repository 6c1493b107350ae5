"""The steps of `DelayedGlobal`. `in_flight_gradients` has the communication that runs while they compute.

A step moves the weights by the local gradient and sends that gradient. Global gradients that are due, or have arrived,
then take the places of their local ones. At the end of a cycle the ranks meet.
"""

from __future__ import annotations

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


class DelayedState(ScheduleState):
    """Makes the steps of `DelayedGlobal` in a job of several ranks."""

    ranks_part = True

    def __init__(self, options: DelayedOptions, optimizer: Any, collectives: Collectives, name: str) -> None:
        """Takes the options, and the arguments of `Schedule.start`."""
        super().__init__(optimizer, collectives, name)
        self._options = options
        self.delays_tables = options.sparse
        self._first_in_flight: InFlightGradients | None = None  # from the first step on
        self._also_averaged: Callable[[], Sequence[Any]] = tuple
        self._end_cycle_function: Callable[[], None] | None = None
        counter = _keras.local_variable
        self._sent = counter(0, "int64", "delayed_sent")  # local steps made
        self._back = counter(0, "int64", "delayed_back")  # of them, those whose global gradients have come
        self._taken = counter(0, "int64", "delayed_taken")  # global gradients received
        self._without_own = counter(0, "int64", "delayed_without_own")  # of them, those this rank was late for
        self._discarded = counter(0, "int64", "delayed_discarded")
        self._most_late = counter(0, "int64", "delayed_most_late")
        self._in_cycle = counter(0, "int64", "delayed_in_cycle")  # iterations
        self._with_samples = counter(0.0, "float32", "delayed_with_samples")  # of those, with a weight above 0
        self._applied = counter(tf.cast(optimizer.iterations, tf.float32), "float32", "delayed_seen")  # by the rule

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`."""
        self._also_averaged = variables

    # --- a step ---

    def reduce(self, step: LocalStep) -> list[tf.Tensor]:
        """See `ScheduleState.reduce`. Dense gradients are not reduced yet."""
        _refuse_reduced(self._options, step.dense)
        self.dense_bytes = sum(gradient.bytes for gradient in step.dense if gradient.value is not None)
        if step.tables is None or self.delays_tables:
            return []
        _warn_of_synchronous_tables(self._options)
        return [step.tables.reduce_and_commit(step.dense, [])]

    def update(self, step: LocalStep) -> None:
        """Moves the dense weights by this rank's gradients, sends these, and takes global ones that have come."""
        present = [gradient for gradient in step.dense if gradient.value is not None]
        tables = step.tables if self.delays_tables else None
        self._step(
            [gradient.value for gradient in present],
            [gradient.variable for gradient in present],
            step.rate,
            step.weight,
            tables,
        )

    def _step(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        rate: tf.Tensor,
        weight: tf.Tensor,
        sparse: SparseStep | None,
    ) -> None:
        in_flight = self._begin(variables, sparse)
        rate = tf.cast(rate, tf.float32)
        # A rank without samples moves by nothing, not even by NaN.
        has_samples = tf.cast(weight > 0.0, tf.float32)
        local_gradients = [rank_weight.weighted(gradient, has_samples) for gradient in gradients]
        number = self._sent.read_value()
        local_steps = in_flight.rule.local(local_gradients, rate, self._applied)
        put = in_flight.send(number, rate, weight, local_gradients, local_steps, sparse)
        # Results that are received below may change tables: not before this step has looked its rows up.
        with tf.control_dependencies([] if put is None else [put]):  # None: eagerly
            sent, in_cycle = number + 1, self._in_cycle + 1
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
        """See `ScheduleState.drain`. Takes the outstanding global gradients and ends the cycle."""
        if not self.outstanding():
            return
        if self._end_cycle_function is None:
            # Not the method itself: TensorFlow counts traces by code object, and would warn of retracing.
            self._end_cycle_function = tf.function(functools.partial(self._end_cycle), autograph=False)
        self._end_cycle_function()

    def _end_cycle(self) -> None:
        sent, closes = self._sent.read_value(), self._options.late_after_s is not None
        if closes:
            self._in_flight.close()
        self._take(sent, sent, tf.constant(closes))
        self._average()

    def outstanding(self) -> bool:
        """See `ScheduleState.outstanding`."""
        return self._first_in_flight is not None and int(self._in_cycle) > 0

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
    def _in_flight(self) -> InFlightGradients:
        assert self._first_in_flight is not None  # by the first step
        return self._first_in_flight

    def _begin(self, variables: Sequence[Any], sparse: SparseStep | None) -> InFlightGradients:
        """Starts to communicate in the first step.

        Raises:
          ValueError: A later step has other variables or tables, or the variables of the first step cannot be delayed.
        """
        if self._first_in_flight is None:
            unsupported = [(v.name, v.dtype) for v in variables if tf.as_dtype(v.dtype) != tf.float32]
            if unsupported:
                raise ValueError(f"DelayedGlobal trains float32 variables. Received: {unsupported}")
            constrained = [
                (_keras.variable_name(variable), variable.constraint) for variable in variables if variable.constraint
            ]
            if constrained:
                raise ValueError(
                    "DelayedGlobal cannot keep constraints: a later correction would change weights that a constraint "
                    f"has moved. Received: {constrained}. Remove the constraints, or use another schedule"
                )
            optimizer = self._optimizer
            with tf.init_scope():
                rule = delayed_rules.kind_of(optimizer)(optimizer, variables)
                self._first_in_flight = InFlightGradients(self._options, rule, sparse, self._collectives, self._name)
            return self._first_in_flight
        in_flight = self._in_flight
        names_before = [variable.name for variable in in_flight.rule.variables]
        names = [_keras.tf_variable(variable).name for variable in variables]
        tables_before, tables = _tables_of(in_flight.sparse), _tables_of(sparse)
        if (names, tables) != (names_before, tables_before):
            raise ValueError(
                "DelayedGlobal needs gradients of the same variables and tables in every step: gradients of earlier "
                f"steps are still in flight. Received: {names}, {tables}. Before: {names_before}, {tables_before}"
            )
        return in_flight

    # --- global gradients ---

    def _take(self, due: tf.Tensor, sent: tf.Tensor, ends: tf.Tensor) -> None:
        """Takes results and corrects weights.

        Args:
          due: Results of local steps before this number are waited for; others are taken if they have come.
          sent: The number of local steps made.
          ends: Whether to continue until all ranks are closing.
        """
        in_flight = self._in_flight

        def more(back: tf.Tensor, over: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            needed = (back < due) | (ends & ~over)
            return needed if self._options.reproducible else needed | ((in_flight.waiting() > 0) & ~over)

        def take(back: tf.Tensor, _: tf.Tensor, n: tf.Tensor, *newest: tf.Tensor) -> tuple[tf.Tensor, ...]:
            result = in_flight.receive()
            has_local = result.number >= 0
            # False if no rank sent a gradient.
            has_any = has_local | (in_flight.weights(result) > 0.0)
            if self._options.apply == "newest":
                flat = tf.nest.flatten(result)
                kept = [tf.where(has_any, tensor, before) for tensor, before in zip(flat, newest, strict=True)]
            else:
                kept = []
                tf.cond(has_any, lambda: self._correct(result, sent), lambda: None)
            return (
                back + tf.cast(has_local, tf.int64),
                in_flight.is_last(result),
                n + tf.cast(has_any, tf.int64),
                *kept,
            )

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
        rule, weights = self._in_flight.rule, self._in_flight.weights(result)
        weighted_rate = result.sums[rule.size + 1]
        rank_weight.check([weights], result.weight, None)
        late = tf.where(result.number >= 0, sent - 1 - result.number, 0)
        self._most_late.assign(tf.maximum(self._most_late, late))
        self._without_own.assign_add(tf.cast(result.number < 0, tf.int64))
        rate = tf.where(weights > 0.0, rank_weight.mean(weighted_rate, weights), result.rate)
        means = _ops.mean_split(result.local_gradients, result.sums, weights)
        rule.correct(
            Correction(
                result.local_gradients,
                result.local_steps,
                result.rate,
                means,
                rate,
                tf.cast(late, tf.float32),
                self._applied,
            )
        )
        self._applied.assign_add(1.0)

    # --- the end of a cycle ---

    def _average(self) -> None:
        """Makes ranks equal.

        Parameters, slots and registered variables are averaged, by the share of the cycle's iterations with samples.
        """
        rule = self._in_flight.rule
        slots = [slot for slots in rule.slots for slot in slots]
        # A frozen table's anchor is no parameter, either; tables are equal without it.
        registered = [
            _keras.tf_variable(variable) for variable in self._also_averaged() if binding_of(variable) is None
        ]
        registered = [variable for variable in registered if variable.dtype.is_floating]
        variables = [*rule.variables, *slots, *registered, self._applied]
        # 1 on a rank with samples in every iteration of the cycle: products with it are exact.
        share = self._with_samples / tf.cast(self._in_cycle, tf.float32)
        values = [tf.cast(variable, tf.float32) for variable in variables]
        agreement = None if self.make_agreement is None else self.make_agreement()
        packing = dense_mean.WeightedPacking(values, share, dense_mean.CONCATENATE_ALL, agreement=agreement)
        means, total = packing.means(self._collectives.allreduce(packing.buffers, f"{self._name}.cycle", average=False))
        agreed = [] if agreement is None else agreement.check(means)
        with tf.control_dependencies(agreed):
            total = tf.identity(total)
        for variable, value, mean in zip(variables, values, means, strict=True):
            # If no rank had samples, ranks are as equal as they were.
            variable.assign(tf.cast(tf.where(total > 0.0, mean, value), variable.dtype))
        self._in_cycle.assign(0)
        self._with_samples.assign(0.0)


def _tables_of(sparse: SparseStep | None) -> list[str]:
    return [] if sparse is None else [table.path for table in sparse.update.tables]


def _refuse_reduced(options: DelayedOptions, dense: Sequence[DenseGradient]) -> None:
    """Raises ValueError, with the reason, for gradients that are not this rank's own."""
    for gradient in dense:
        if gradient.big:
            problem = "IndexedSlices of a large variable. Use tsps.Embedding for it"
        elif gradient.value is not None and mean_of(gradient.value) is not None:
            problem = "the mean that a DistributedGradientTape has made. Use tf.GradientTape"
        else:
            continue
        raise ValueError(
            f"{options} steps with each rank's own gradients. Received for {gradient.variable.name}: {problem}"
        )


def _warn_of_synchronous_tables(options: DelayedOptions) -> None:
    """Warns that delaying only dense gradients gains little."""
    warnings.warn(
        f"{options}: the step of the tables is synchronous, so ranks wait for each other in every step, and little is "
        "gained. With sparse=True the tables are delayed, too.",
        stacklevel=2,
    )
