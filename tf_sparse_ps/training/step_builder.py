"""`StepBuilder`: one training step on every rank takes gradients in, reduces them, and updates weights and tables."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops, job, optimizers, schedules
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.errors import StateError
from tf_sparse_ps.job.job import Job
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.node import activity
from tf_sparse_ps.reduction import rank_weight, step_order
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
from tf_sparse_ps.training.optimizer_options import OptimizerOptions

_ROW_COUNTERS = ("admitted", "evicted_unused", "evicted_excess")


class StepBuilder:
    """Builds the training steps of one optimizer, in graphs and eagerly.

    Attributes:
      weight: The weight of this rank's steps.
      initial_sync: Makes the ranks equal before the first step.
      binding: The tables of the optimizer, with their update rules.
    """

    def __init__(self, owner: OptimizerOptions, collectives: Collectives, rule: optimizers.RowOptimizer | None) -> None:
        """Makes a builder that has not begun.

        Args:
          owner: The optimizer. Its options and its wrapped optimizer are used as they are when a step is traced.
          collectives: The rank's collectives.
          rule: The update rule of tables that have none of their own. None: the one that does what the wrapped
            optimizer does.
        """
        self._variables: list[Any] = []
        self.weight = rank_weight.RankWeight()
        self.initial_sync = initial_sync.InitialSync(owner, collectives, self.weight)
        self._owner, self._collectives = owner, collectives
        self.binding = OptimizerBinding(owner, collectives, rule)
        self._started: schedules.ScheduleState | None = None  # with the first step
        self._untrained: Callable[[], Sequence[Any]] = tuple  # variables to average with the trained ones

    # --- properties and reports of the optimizer ---

    @property
    def variables(self) -> list[Any]:
        """The variables that the optimizer was built for: dense ones, and the anchors of tables.

        Raises:
          ValueError: A table's layer is gone.
        """
        variables = [entry() if isinstance(entry, weakref.ref) else entry for entry in self._variables]
        if any(variable is None for variable in variables):
            raise ValueError("the optimizer was built for a table whose layer is gone")
        return variables

    @variables.setter
    def variables(self, value: Sequence[Any]) -> None:
        # Weak references: an optimizer does not keep a table that it could train.
        self._variables = [entry if binding_of(entry) is None else weakref.ref(entry) for entry in value]

    def statistics(self) -> dict[str, float]:
        """See `DistributedOptimizer.statistics`."""
        statistics = dict.fromkeys(_ops.RING_COUNTERS, 0.0)
        if self.binding.reducers:
            counters = _ops.ring_info(job.current().group_path).numpy().tolist()
            statistics = {name: float(value) for name, value in zip(_ops.RING_COUNTERS, counters, strict=True)}
        for name in ("waited", "sending", "overlapped"):
            statistics[f"{name}_s"] = statistics.pop(f"{name}_ns") * 1e-9
        disk = _ops.disk_counters()
        pulls = _ops.pull_counters(job.current().group_path) if self.binding.reducers else None
        return {
            **statistics,
            "rows_read": float(disk.records),
            "rows_read_late": float(disk.late),
            "rows_read_before": float(disk.cached),
            "disk_bytes": float(disk.bytes),
            "disk_waited_s": float(disk.waited_ns) * 1e-9,
            "disk_errors": float(disk.errors),
            "rows_pulled": 0.0 if pulls is None else float(pulls.looked_up),
            "rows_pulled_before": 0.0 if pulls is None else float(pulls.ahead),
            **self.binding.balance.statistics(),
            **self._of_policies(),
            "dense_bytes_per_step": 0.0 if self._started is None else float(self._started.dense_bytes),
        }

    def _of_policies(self) -> dict[str, float]:
        """Returns what the tables' evictions and admissions have done on this machine."""
        tables = self.binding.tables
        stats = [table.reader().stats() for table in tables if table.config.eviction or table.config.admission]
        fills = [table.reader().sketch_fill(table.config.admission) for table in tables if table.config.admission]
        return {
            **{f"rows_{name}": float(sum(table_stats[name] for table_stats in stats)) for name in _ROW_COUNTERS},
            "gradients_dropped": float(sum(table_stats["gradients_dropped"] for table_stats in stats)),
            "oldest_use_age": float(max((table_stats["oldest_use_age"] or 0 for table_stats in stats), default=0)),
            "sketch_fill": max((fill or 0.0 for fill, _ in fills), default=0.0),
            "sketch_error": max((error or 0.0 for _, error in fills), default=0.0),
        }

    def finish(self) -> None:
        """Drains, and compares the nodes' parts of sharded tables. All ranks call it at the end of `fit`."""
        self.drain()
        self.binding.balance.compare()

    @property
    def begun(self) -> bool:
        """Whether this process has traced a first step, or made one eagerly."""
        return self._started is not None

    def drain(self) -> None:
        """See `ScheduleState.drain`."""
        if self._started is not None:
            self._started.drain()

    def outstanding(self) -> bool:
        """See `ScheduleState.outstanding`."""
        return self._started is not None and self._started.outstanding()

    def incomplete(self) -> bool:
        """See `ScheduleState.incomplete`."""
        return self._started is not None and self._started.incomplete()

    def report(self) -> dict[str, Any]:
        """See `DistributedOptimizer.schedule_report`."""
        return {} if self._started is None else self._started.report()

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`."""
        self._untrained = variables
        if self._started is not None:
            self._started.also_average(variables)

    # --- a step ---

    def make(self, pairs: list[tuple[Any, Any]]) -> None:
        """Makes one step, in a graph or eagerly.

        Args:
          pairs: Pairs of gradient and variable.

        Raises:
          ValueError: The gradients cannot be trained. The message has the reason.
        """
        strategy = replicas.strategy_of_step(self._collectives)
        with step_order.between_data(), step_order.after_earlier_steps() as note:
            if strategy is not None:
                note(self._make_in_replicas(strategy, pairs))
                return
            step = self._take_in([pairs], 1)
            if step.tables is None and (this_job := job.made()) is not None and this_job.size > 1:
                _ops.raise_objection(this_job.group_path)  # a lookup has failed, and no step of tables reports it
            self.binding.count_step()
            step_numbers = self._state.reduce(step)
            with tf.control_dependencies(step_numbers):
                self._state.update(step)
            step.wait_until_published(step_numbers)
            note(step_numbers)

    def _make_in_replicas(self, strategy: Any, pairs: list[tuple[Any, Any]]) -> list[tf.Tensor]:
        replicas.check_optimizer(self._owner.inner_optimizer, strategy)

        def together(per_replica: list[replicas.Pairs], n_replicas: int) -> tuple[list[Any], list[tf.Tensor]]:
            step = self._take_in(per_replica, n_replicas, strategy.extended.worker_devices)
            step_numbers = self._state.reduce(step)
            step.wait_until_published(step_numbers)
            return [gradient.result for gradient in step.dense], step_numbers

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
          n_replicas: The number of replicas of all processes; 1 without a strategy.
          devices: The devices of the replicas of this process; empty without a strategy.
        """
        owner, pairs = self._owner, per_replica[0]
        activity.progress()  # in a graph: it is being traced
        self.weight.take_next_in()
        if all(gradient is None for gradient, _ in pairs):
            raise ValueError(f"no gradients provided for any variable: {[v.name for _, v in pairs]}")
        if not self._variables:
            owner.build([variable for _, variable in pairs])
        parts = [split(replica_pairs) for replica_pairs in per_replica]
        tables, dense = replicas.combine(parts, n_replicas, owner.sparse_reduction, devices)
        computed = tf.executing_eagerly() and all(mean_of(gradient.value) is None for gradient in dense)
        with tf.init_scope():
            this_job = job.current() if tables else None
            if this_job is not None:
                _refuse_beside_delayed(self)
            sync = self.initial_sync
            self.binding.bind(this_job, tables, dense, begins_equal=not sync.pending, root=sync.root)
            if sync.pending:
                averaged = [variable for variable in self._untrained() if tf.as_dtype(variable.dtype).is_floating]
                sync.make([*self.variables, *(gradient.variable for gradient in dense), *averaged], computed=computed)
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
            self._started = owner.schedule.start(owner.inner_optimizer, self._collectives, self.binding.name)
            self._started.also_average(self._untrained)
            self._started.make_agreement = self._agreement_of_all

    def _agreement(self, rate: tf.Tensor, *, dense: Sequence[DenseGradient], **tables: Any) -> Agreement | None:
        """Returns the facts that ranks compare in this step. None: one rank; or ranks compare when they meet."""
        if self._collectives.size == 1 or (not tables and self._state.ranks_part) or self._state.delays_tables:
            return None
        compared = [] if self._state.ranks_part else dense
        return step_facts.make(
            self._collectives,
            f"{self.binding.name}.agreement",
            updates=tf.convert_to_tensor(self._owner.iterations),
            rate=rate,
            options=self.binding.options(),
            dense=compared,
            **tables,
        )

    def _agreement_of_all(self) -> Agreement:
        """Returns the facts that ranks compare when they meet: all tables, but no weights, which become equal."""
        owner = self._owner
        return step_facts.make(
            self._collectives,
            f"{self.binding.name}.meeting",
            updates=tf.convert_to_tensor(owner.iterations),
            rate=_keras.current_learning_rate(owner.inner_optimizer),
            options=self.binding.options(),
            tables=self.binding.tables,
        )

    def _sparse_step(
        self,
        this_job: Job,
        tables: list[TableGradient],
        rate: tf.Tensor,
        weight: tf.Tensor,
        dense: Sequence[DenseGradient],
    ) -> SparseStep:
        updates = tf.convert_to_tensor(self._owner.iterations)
        bindings = [gradient.table for gradient in tables]
        rules = [self.binding.rule_of(table) for table in bindings]
        hyper = [rule.hyper_tensor(tf.cast(rule.rate_at(updates, rate), tf.float32), updates + 1) for rule in rules]
        for i, constraint in enumerate(table.config.resolved_constraint() for table in bindings):
            if constraint is not None:
                hyper[i] = tf.concat([hyper[i], constraint.parameters], 0)
        agreement = self._agreement(rate, dense=dense, tables=bindings, hyper=hyper)
        return SparseStep(
            this_job,
            self.binding.reducers,
            f"{self.binding.name}.sparse",
            rank_weight.kept([table.gradient for table in tables], weight),
            Update(
                bindings,
                hyper,
                OptimizerIdentity.of(self._owner.inner_optimizer).step(updates),
                agreement=agreement,
            ),
            Clipping.of(self._owner.inner_optimizer),
            self._owner.loss_scale_factor,
        )

    def outstanding_tables(self) -> bool:
        """Returns whether steps of tables have begun and are not committed yet."""
        return self._started is not None and self._started.delays_tables and self._started.outstanding()


_with_tables: weakref.WeakSet[StepBuilder] = weakref.WeakSet()


def _refuse_beside_delayed(step: StepBuilder) -> None:
    """Notes that an optimizer makes steps of this process's tables.

    Raises:
      StateError: Another optimizer has outstanding steps of tables, which could not be counted apart.
    """
    if any(other.outstanding_tables() for other in _with_tables if other is not step):
        raise StateError(
            "another optimizer of this process has outstanding steps of tables. Call its drain() before a step of this "
            "optimizer. To use both alternately, give the other one DelayedGlobal(sparse=False)"
        )
    _with_tables.add(step)
