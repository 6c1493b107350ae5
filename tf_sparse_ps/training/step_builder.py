"""One step of an optimizer, on every rank: take gradients in, reduce them, update weights and tables, publish."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops, job, optimizers, schedules
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.job.job import Job
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.node import activity
from tf_sparse_ps.reduction import rank_weight
from tf_sparse_ps.reduction.agreement import Agreement
from tf_sparse_ps.reduction.clipping import Clipping
from tf_sparse_ps.reduction.gradients import DenseGradient, TableGradient, mean_of, split
from tf_sparse_ps.reduction.optimizer_identity import OptimizerIdentity
from tf_sparse_ps.reduction.sparse_gradient import Update
from tf_sparse_ps.reduction.sparse_step import SparseStep
from tf_sparse_ps.schedules.schedule import LocalStep
from tf_sparse_ps.schedules.synchronous import SynchronousState
from tf_sparse_ps.training import initial_sync, replicas, step_facts
from tf_sparse_ps.training.optimizer_binding import OptimizerBinding

if TYPE_CHECKING:
    from tf_sparse_ps.training.options import OptimizerOptions

_STEP_NUMBERS = "_tsps_step_numbers"  # attribute of a graph: the committed steps of the training steps in it


class StepBuilder:
    """Builds the training steps of one optimizer, in graphs and eagerly.

    Attributes:
      variables: That the optimizer was built for.
      weight: Of this rank.
      equal: What makes ranks begin alike.
    """

    def __init__(self, owner: OptimizerOptions, collectives: Collectives, rule: optimizers.RowOptimizer | None) -> None:
        """Makes nothing yet.

        Args:
          owner: Whose options and wrapped optimizer are used, as they are when a step is traced.
          collectives: The rank's collectives.
          rule: Of tables without their own; None: what the wrapped optimizer does.
        """
        self._variables: list[Any] = []
        self.weight = rank_weight.RankWeight()
        self.equal = initial_sync.InitialSync(owner, collectives, self.weight)
        self._owner, self._collectives = owner, collectives
        self._binding = OptimizerBinding(owner, collectives, rule)
        self._started: schedules.ScheduleState | None = None  # with the first step
        self._also: Callable[[], Sequence[Any]] = tuple

    # --- what the optimizer is asked for ---

    @property
    def variables(self) -> list[Any]:
        """See the class.

        Raises:
          ValueError: A table's layer is gone.
        """
        found = [one() if isinstance(one, weakref.ref) else one for one in self._variables]
        if any(one is None for one in found):
            raise ValueError("the optimizer was built for a table whose layer is gone")
        return found

    @variables.setter
    def variables(self, value: Sequence[Any]) -> None:
        # A table is not kept by an optimizer that could train it.
        self._variables = [one if binding_of(one) is None else weakref.ref(one) for one in value]

    @property
    def no_decay(self) -> list[Any]:
        """Tables whose rows have no weight decay."""
        return self._binding.no_decay

    @no_decay.setter
    def no_decay(self, tables: Sequence[Any]) -> None:
        self._binding.no_decay = list(tables)

    def match_rule(self) -> None:
        """See `OptimizerBinding.match_rule`."""
        self._binding.match_rule()

    def rule_of(self, table: Any) -> optimizers.RowOptimizer:
        """See `OptimizerBinding.rule_of`."""
        return self._binding.rule_of(table)

    def statistics(self) -> dict[str, float]:
        """See `DistributedOptimizer.statistics`."""
        found = dict.fromkeys(_ops.RING_COUNTERS, 0.0)
        if self._binding.reducers:
            counters = _ops.ring_info(job.current().group_path).numpy().tolist()
            found = {name: float(value) for name, value in zip(_ops.RING_COUNTERS, counters, strict=True)}
        for name in ("waited", "sending", "overlapped"):
            found[f"{name}_s"] = found.pop(f"{name}_ns") * 1e-9
        disk = _ops.disk_counters()
        found |= {"rows_read": float(disk.records), "rows_read_late": float(disk.late)}
        found |= {"rows_read_before": float(disk.cached)}
        found |= {"disk_bytes": float(disk.bytes), "disk_waited_s": float(disk.waited_ns) * 1e-9}
        found |= {"rows_pulled": 0.0, "rows_pulled_before": 0.0}
        if self._binding.reducers:
            pulls = _ops.pull_counters(job.current().group_path)
            found |= {"rows_pulled": float(pulls.looked_up), "rows_pulled_before": float(pulls.ahead)}
        dense_bytes = 0 if self._started is None else self._started.dense_bytes
        return {**found, **self._binding.balance.statistics(), "dense_bytes_per_step": float(dense_bytes)}

    def finish(self) -> None:
        """At the end of `fit`, on all ranks: drains, and compares the nodes' parts of sharded tables."""
        self.drain()
        self._binding.balance.compare()

    @property
    def begun(self) -> bool:
        """Whether the schedule is at work: its first step has been traced."""
        return self._started is not None

    def drain(self) -> None:
        """See `ScheduleState.drain`."""
        if self._started is not None:
            self._started.drain()

    def outstanding(self) -> bool:
        """See `ScheduleState.outstanding`."""
        return self._started is not None and self._started.outstanding()

    def report(self) -> dict[str, Any]:
        """See `DistributedOptimizer.schedule_report`."""
        return {} if self._started is None else self._started.report()

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`."""
        self._also = variables
        if self._started is not None:
            self._started.also_average(variables)

    # --- a step ---

    def make(self, pairs: list[tuple[Any, Any]]) -> None:
        """Makes one step of these pairs of gradient and variable. In a graph, or eagerly.

        Raises:
          ValueError: Something about the gradients that cannot be trained, with the reason.
        """
        strategy = replicas.strategy_of_step(self._collectives)
        with _after_steps_of_this_graph() as note:
            if strategy is None:
                note(self._make_alone(pairs))
            else:
                note(self._make_in_replicas(strategy, pairs))

    def _make_alone(self, pairs: list[tuple[Any, Any]]) -> list[tf.Tensor]:
        step = self._take_in([pairs], 1)
        if step.tables is None and (this_job := job.made()) is not None and this_job.size > 1:
            _ops.raise_objection(this_job.group_path)  # a look-up has failed, and no step of tables can say so
        self._binding.count_step()
        step_numbers = self._state.reduce(step)
        with tf.control_dependencies(step_numbers):
            self._state.update(step)
        step.wait_until_published(step_numbers)
        return step_numbers

    def _make_in_replicas(self, strategy: Any, pairs: list[tuple[Any, Any]]) -> list[tf.Tensor]:
        replicas.check_optimizer(self._owner.inner_optimizer, strategy)

        def together(per_replica: list[replicas.Pairs], n_replicas: int) -> tuple[list[Any], list[tf.Tensor]]:
            step = self._take_in(per_replica, n_replicas, strategy.extended.worker_devices)
            step_numbers = self._state.reduce(step)
            step.wait_until_published(step_numbers)
            return [one.result for one in step.dense], step_numbers

        results, step_numbers = replicas.as_one(strategy, pairs, together)
        state = self._state
        assert isinstance(state, SynchronousState)  # other schedules refuse tf.distribute
        with tf.control_dependencies(step_numbers):
            state.apply([variable for _, variable in pairs if binding_of(variable) is None], results)
        return step_numbers

    @property
    def _state(self) -> schedules.ScheduleState:
        assert self._started is not None  # when gradients were taken in
        return self._started

    # --- taking in ---

    def _take_in(self, per_replica: list[replicas.Pairs], n_replicas: int, devices: Sequence[str] = ()) -> LocalStep:
        """Sorts gradients, and binds what is new.

        Args:
          per_replica: The pairs of each replica of this process.
          n_replicas: Of all processes; 1 without a strategy.
          devices: Of the replicas of this process; none without a strategy.
        """
        owner, pairs = self._owner, per_replica[0]
        activity.progress()  # in a graph: it is being traced
        self.weight.take_next_in()
        if all(gradient is None for gradient, _ in pairs):
            raise ValueError(f"no gradients provided for any variable: {[v.name for _, v in pairs]}")
        if not self._variables:
            owner.build([variable for _, variable in pairs])
        parts = [split(one) for one in per_replica]
        tables, dense = replicas.combine(parts, n_replicas, owner.sparse_reduction, devices)
        computed = tf.executing_eagerly() and all(mean_of(one.value) is None for one in dense)
        with tf.init_scope():
            this_job = job.current() if tables else None
            if this_job is not None:
                _refuse_beside_delayed(self)
            begins_equal = not self.equal.pending
            self._binding.bind(this_job, tables, dense, begins_equal=begins_equal, root=self.equal.root)
            if self.equal.pending:
                also = [one for one in self._also() if tf.as_dtype(one.dtype).is_floating]
                self.equal.make([*self.variables, *(one.variable for one in dense), *also], computed=computed)
            self._start()
        # Read now: the wrapped optimizer's update advances its iterations, and with them a schedule of the rate.
        weight = self.weight.now(owner.iterations)
        rate = _keras.current_learning_rate(owner.inner_optimizer)
        if this_job is None:
            return LocalStep(dense, None, rate, weight, self._agreement(rate, dense=dense))
        return LocalStep(dense, self._sparse_step(this_job, tables, rate, weight, dense), rate, weight)

    def _start(self) -> None:
        if self._started is None:
            owner = self._owner
            self._started = owner.schedule.start(owner.inner_optimizer, self._collectives, self._binding.name)
            self._started.also_average(self._also)
            self._started.make_agreement = self._agreement_of_all

    def _agreement(self, rate: tf.Tensor, *, dense: Sequence[DenseGradient], **tables: Any) -> Agreement | None:
        """What ranks must agree on in this step; None: there is one rank, or they are compared when they meet."""
        if self._collectives.size == 1 or (not tables and self._state.ranks_part) or self._state.delays_tables:
            return None
        compared = [] if self._state.ranks_part else dense
        return step_facts.make(
            self._collectives,
            f"{self._binding.name}.agreement",
            made=tf.convert_to_tensor(self._owner.iterations),
            rate=rate,
            options=self._binding.options(),
            dense=compared,
            **tables,
        )

    def _agreement_of_all(self) -> Agreement:
        """The same for ranks that meet: of all tables, and not of weights, which will be equal."""
        owner = self._owner
        return step_facts.make(
            self._collectives,
            f"{self._binding.name}.meeting",
            made=tf.convert_to_tensor(owner.iterations),
            rate=_keras.current_learning_rate(owner.inner_optimizer),
            options=self._binding.options(),
            tables=self._binding.tables,
        )

    def _sparse_step(
        self,
        this_job: Job,
        tables: list[TableGradient],
        rate: tf.Tensor,
        weight: tf.Tensor,
        dense: Sequence[DenseGradient],
    ) -> SparseStep:
        made = tf.convert_to_tensor(self._owner.iterations)
        rules = [self.rule_of(one.table) for one in tables]
        hyper = [rule.hyper_tensor(tf.cast(rule.rate_at(made, rate), tf.float32), made + 1) for rule in rules]
        for i, constraint in enumerate(one.table.config.resolved_constraint() for one in tables):
            if constraint is not None:
                hyper[i] = tf.concat([hyper[i], constraint.parameters], 0)
        agreement = self._agreement(rate, dense=dense, tables=[one.table for one in tables], hyper=hyper)
        return SparseStep(
            this_job,
            self._binding.reducers,
            f"{self._binding.name}.sparse",
            rank_weight.kept([one.gradient for one in tables], weight),
            Update(
                [one.table for one in tables],
                hyper,
                OptimizerIdentity.of(self._owner.inner_optimizer).step(made),
                agreement=agreement,
            ),
            Clipping.of(self._owner.inner_optimizer),
            self._owner.loss_scale_factor,
        )

    def outstanding_tables(self) -> bool:
        """Whether some steps of tables that it has begun are not made yet."""
        return self._started is not None and self._started.delays_tables and self._started.outstanding()


_with_tables: weakref.WeakSet[StepBuilder] = weakref.WeakSet()


def _refuse_beside_delayed(step: StepBuilder) -> None:
    """Notes that an optimizer makes steps of this process's tables.

    Raises:
      StateError: Another one's steps are being made beside its own: they could not be counted.
    """
    if any(other.outstanding_tables() for other in _with_tables if other is not step):
        raise StateError(
            "another optimizer of this process delays steps of tables, and some are outstanding. Call its drain() "
            "before this one's step; to use both by turns, give it DelayedGlobal(sparse=False)"
        )
    _with_tables.add(step)


@contextlib.contextmanager
def _after_steps_of_this_graph() -> Iterator[Callable[[list[tf.Tensor]], None]]:
    """Orders a step after what an earlier one in the same graph has noted: whether it is made.

    A rank must not have begun the next step's collectives when the step before turns out to be refused: the other ranks
    would not come to them.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with tf.control_dependencies(getattr(graph, _STEP_NUMBERS, [])):
        yield lambda made: None if graph is None else setattr(graph, _STEP_NUMBERS, made)
