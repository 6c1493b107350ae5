"""One step of an optimizer, on every rank: both rings, the tables' update, the dense weights' update, the wait."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops, _table, failures, optimizers, schedules
from tf_sparse_ps import job as job_lib
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.job.table_binding import binding_of
from tf_sparse_ps.rings import binding, clipping, rank_weight, sparse_ring, sparse_step, topologies
from tf_sparse_ps.training import equal_weights, refusals, replicas
from tf_sparse_ps.training.gradients import DenseGradient, TableGradient, mean_of, split, take_back, unscale

if TYPE_CHECKING:
    from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer

_CERTAIN = "_tsps_certain"  # of a graph


# The one that was bound last: that is asked for the step of this process, if it is still there.
_newest: weakref.ref[Step] | None = None


def _making() -> int:
    step = None if _newest is None else _newest()
    return 0 if step is None else step.making()


class Step:
    """Makes the steps of one optimizer, and knows what it has found out on the way.

    Attributes:
      variables: That the optimizer was built for.
      weight: Of this rank.
      equal: What makes ranks begin alike.
    """

    def __init__(
        self, owner: DistributedOptimizer, collectives: Collectives, rule: optimizers.RowOptimizer | ValueError
    ) -> None:
        """Makes nothing yet.

        Args:
          owner: Whose options and wrapped optimizer are used, as they are when a step is traced.
          collectives: Of this process.
          rule: Of tables without their own; or why there is none, which matters when there is a table.
        """
        self._variables: list[Any] = []
        self.weight = rank_weight.RankWeight()
        self.equal = equal_weights.EqualWeights(owner, collectives, self.weight)
        self._owner, self._collectives, self._rule = owner, collectives, rule
        self._ordinal: int | None = None  # names this optimizer's operations
        self._ring: sparse_ring.SparseRing | None = None  # made when the first table is bound
        self._started: schedules.ScheduleState | None = None  # with the first step
        self._bound: set[str] = set()
        self._also: Callable[[], Sequence[Any]] = tuple
        self._dense_bytes = 0
        self._begun: tf.Variable | None = None  # steps, counted when others may ask: see `failures`

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
    def _schedule_state(self) -> schedules.ScheduleState:
        assert self._started is not None  # when the step was bound
        return self._started

    def rule_of(self, table: Any) -> optimizers.RowOptimizer:
        """The update rule of a table.

        Raises:
          ValueError: There is none, with the reason.
        """
        rule = table.config.optimizer or self._rule
        if isinstance(rule, ValueError):
            raise ValueError(f"table '{table.config.name}' has no update rule: {rule}")
        return rule

    def statistics(self) -> dict[str, float]:
        """See `DistributedOptimizer.statistics`."""
        found = dict.fromkeys(_ops.RING_COUNTERS, 0.0)
        if self._ring is not None:
            counters = _ops.ring_info(job_lib.current().group_path).numpy().tolist()
            found = {name: float(value) for name, value in zip(_ops.RING_COUNTERS, counters, strict=True)}
        for name in ("waited", "sending", "overlapped"):
            found[f"{name}_s"] = found.pop(f"{name}_ns") * 1e-9
        return {**found, "dense_bytes_per_step": float(self._dense_bytes)}

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

    def outstanding_tables(self) -> bool:
        """See `Trainer.outstanding_tables`."""
        return self._started is not None and self._started.delays_tables and self._started.outstanding()

    def report(self) -> dict[str, Any]:
        """See `DistributedOptimizer.schedule_report`."""
        return {} if self._started is None else self._started.report()

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`."""
        self._also = variables
        if self._started is not None:
            self._started.also_average(variables)

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
        job, tables, dense = self._prepare([pairs], 1)
        if self._begun is not None:
            self._begun.assign_add(1)
        if self._schedule_state.delays:
            return self._make_delayed(job, tables, dense)
        made, wait = self._reduce(job, tables, dense)
        with tf.control_dependencies(made):
            self._apply([one.variable for one in dense], [one.result for one in dense])
        wait()
        return made

    def _make_in_replicas(self, strategy: Any, pairs: list[tuple[Any, Any]]) -> list[tf.Tensor]:
        replicas.check_optimizer(self._owner.inner_optimizer, strategy)

        def together(per_replica: list[replicas.Pairs], n_replicas: int) -> tuple[list[Any], list[tf.Tensor]]:
            job, tables, dense = self._prepare(per_replica, n_replicas)
            made, wait = self._reduce(job, tables, dense)
            wait()
            return [one.result for one in dense], made

        results, made = replicas.as_one(strategy, pairs, together)
        with tf.control_dependencies(made):
            self._apply([variable for _, variable in pairs if binding_of(variable) is None], results)
        return made

    def _apply(self, variables: list[Any], gradients: list[Any]) -> None:
        """Lets the wrapped optimizer apply reduced gradients, in every replica."""
        self._schedule_state.apply(variables, gradients)

    def _prepare(
        self, per_replica: list[replicas.Pairs], n_replicas: int
    ) -> tuple[job_lib.Job | None, list[TableGradient], list[DenseGradient]]:
        """Sorts gradients, and binds what is new.

        Args:
          per_replica: The pairs of each replica of this process.
          n_replicas: Of all processes; 1 without a strategy.

        Returns:
          The job, if there are tables; their gradients; those of dense weights.
        """
        owner, pairs = self._owner, per_replica[0]
        if all(gradient is None for gradient, _ in pairs):
            raise ValueError(f"no gradients provided for any variable: {[v.name for _, v in pairs]}")
        if not self._variables:
            owner.build([variable for _, variable in pairs])
        tables, dense = replicas.combine([split(one) for one in per_replica], n_replicas, owner.sparse_reduction)
        computed = tf.executing_eagerly() and all(mean_of(one.value) is None for one in dense)
        with tf.init_scope():
            job = job_lib.current() if tables else None
            self._bind(job, tables, dense, computed)
        return job, tables, dense

    def _reduce(
        self, job: job_lib.Job | None, tables: list[TableGradient], dense: list[DenseGradient]
    ) -> tuple[list[tf.Tensor], Callable[[], None]]:
        """Reduces the gradients of the dense weights, in place, and prepares the step of the tables.

        Returns:
          What there is once it is certain that the step is made: nothing may change before. In a graph; eagerly a step
          that is not made has raised its error. And what waits for the tables' step to be published.
        """
        owner = self._owner
        world, name = self._collectives, f"tsps.{self._ordinal}"

        # Both rings' inputs are ready gradients, and neither's outputs are the other's inputs.
        weight = self.weight.now(owner.iterations)
        big, weights = rank_weight.average_sparse(
            [one.gradient for one in dense if one.big], world, f"{name}.big", weight
        )
        self._dense_bytes = sum(one.bytes for one in dense if one.to_average) if world.size > 1 else 0
        to_average = [one for one in dense if one.to_average]
        averaged, sums = self._schedule_state.average(
            [one.value for one in to_average], [one.variable for one in to_average], weight
        )
        means = list(filter(None, (mean_of(one.value) for one in dense)))
        take_back(dense, averaged, big)

        # Read now: the wrapped optimizer's update advances its iterations, and with them a schedule.
        rate, made = _keras.current_learning_rate(owner.inner_optimizer), tf.convert_to_tensor(owner.iterations)
        of_tables = None if job is None else self._sparse_step(job, tables, rate, made, weight)
        certain = None if of_tables is None else self._update_tables(of_tables, dense)
        of_tape = means[0].weight if means else None
        rank_weight.check([*weights, *sums, *(means[0].sums if means else [])], weight, of_tape)

        def wait() -> None:
            if of_tables is not None and certain is not None:
                of_tables.wait(certain)

        return [] if certain is None else [certain], wait

    def _make_delayed(
        self, job: job_lib.Job | None, tables: list[TableGradient], dense: list[DenseGradient]
    ) -> list[tf.Tensor]:
        """A step of a schedule that delays gradients. Returns as `_reduce`."""
        owner, state = self._owner, self._schedule_state
        refusals.refuse_not_own(owner.schedule, dense)
        weight = self.weight.now(owner.iterations)
        rate, made = _keras.current_learning_rate(owner.inner_optimizer), tf.convert_to_tensor(owner.iterations)
        own = [one for one in dense if one.value is not None]
        self._dense_bytes = sum(one.bytes for one in own)
        of_tables = None if job is None else self._sparse_step(job, tables, rate, made, weight)
        gradients, variables = [one.value for one in own], [one.variable for one in own]
        if of_tables is None or state.delays_tables:
            state.step(gradients, variables, rate, weight, of_tables)
            return []
        refusals.warn_of_synchronous_tables(owner.schedule)
        certain = self._update_tables(of_tables, dense)
        with tf.control_dependencies([certain]):
            state.step(gradients, variables, rate, weight, None)
        of_tables.wait(certain)
        return [certain]

    def making(self) -> int:
        """Which step this process is making: of the tables, or, where there are none, the one that it has begun."""
        if self._ring is not None:
            return int(_table.Group.open(job_lib.current().group_path).info()["step"]) + 1
        return int(self._begun) if self._begun is not None else 0

    def _bind(self, job: Any, tables: list[TableGradient], dense: list[DenseGradient], computed: bool) -> None:
        if job is not None:
            job.trained_by(self)
        new = [one.table for one in tables if one.table.path not in self._bound]
        refusals.refuse_other_rules([(one.table, self.rule_of(one.table)) for one in tables if one.table not in new])
        if self._ordinal is None or new:
            self._agree(job, tables, dense, new)
        if self.equal.pending:
            also = [one for one in self._also() if tf.as_dtype(one.dtype).is_floating]
            self.equal.make([*self.variables, *(one.variable for one in dense), *also], computed=computed)
        if self._started is None:
            self._started = self._owner.schedule.start(
                self._owner.inner_optimizer, self._collectives, f"tsps.{self._ordinal}"
            )
            self._started.also_average(self._also)

    def _agree(self, job: Any, tables: list[TableGradient], dense: list[DenseGradient], new: list[Any]) -> None:
        owner = self._owner
        self._ordinal = binding.bind(
            self._collectives,
            job,
            new,
            [self.rule_of(table) for table in new],
            {
                "sparse_reduction": owner.sparse_reduction,
                "topology": owner.topology,
                "wire": owner.wire,
                "schedule": owner.schedule,
                "broadcast": owner.broadcast,
                "wrapped optimizer": type(owner.inner_optimizer).__name__,
                # Until ranks are made equal, one alone may have loaded them.
                "updates made before": "any" if self.equal.pending else int(tf.convert_to_tensor(owner.iterations)),
                "clipping": clipping.Clipping.of(owner.inner_optimizer),
                "dense gradients": [one.signature for one in dense],
                "tables with gradients": [one.table.config.name for one in tables],
            },
        )
        self._bound.update(table.path for table in new)
        if self._collectives.size > 1:
            if self._begun is None and job is None:
                self._begun = _keras.local_variable(0, "int64", f"tsps.{self._ordinal}.begun")
            global _newest
            _newest = weakref.ref(self)
            failures.report(self._collectives, _making)
        if new and self._collectives.size > 1:
            binding.on_all(self._collectives, job.join_exchange, "tsps.exchange")
            failures.watch(job)
        if new and self._ring is None:
            self._ring = topologies.make(owner.topology, job, owner.sparse_reduction, owner.wire)

    def _sparse_step(
        self, job: job_lib.Job, tables: list[TableGradient], rate: tf.Tensor, made: tf.Tensor, weight: tf.Tensor
    ) -> sparse_step.SparseStep:
        assert self._ring is not None  # made when the tables were bound
        rules = [self.rule_of(one.table) for one in tables]
        hyper = [rule.hyper_tensor(tf.cast(rule.rate_at(made, rate), tf.float32), made + 1) for rule in rules]
        for i, constraint in enumerate(one.table.config.resolved_constraint() for one in tables):
            if constraint is not None:
                hyper[i] = tf.concat([hyper[i], constraint.parameters], 0)
        update = sparse_ring.Update([one.table for one in tables], hyper)
        gradients = rank_weight.kept([one.gradient for one in tables], weight)
        return sparse_step.SparseStep(job, self._ring, f"tsps.{self._ordinal}.sparse", gradients, update)

    def _update_tables(self, step: sparse_step.SparseStep, dense: list[DenseGradient]) -> tf.Tensor:
        """Returns the number of the step that these gradients make, once it is certain that it is made."""
        number = step.number()
        verdict = self._verdict(step, number, dense)
        results = [one.result for one in dense if one.result is not None]
        taken_part = [one.values if isinstance(one, tf.IndexedSlices) else one for one in results]
        return step.check(number, verdict, [*taken_part, *self._schedule_state.in_flight()])

    def _verdict(self, step: sparse_step.SparseStep, number: tf.Tensor, dense: list[DenseGradient]) -> tf.Tensor:
        factor, clip = self._owner.loss_scale_factor, clipping.Clipping.of(self._owner.inner_optimizer)
        if factor == 1.0 and clip == clipping.Clipping():
            return step.apply(number)
        reduced, name = step.reduce(number), f"tsps.{self._ordinal}.clip"
        rows = [unscale(one.rows, factor) for one in reduced]
        if clip.value is not None:
            rows = [tf.clip_by_value(one, -clip.value, clip.value) for one in rows]
        if clip.needs_norms:
            others = [unscale(one.result, factor) for one in dense if one.result is not None]
            factors = clipping.table_factors(clip, rows, others, len(step.gradients), self._collectives, name)
            rows = [one * factors[t] for t, one in enumerate(rows)]
            if clip.global_norm is not None:
                # The wrapped optimizer clips what it gets once more, which finds nothing left to clip.
                for one in dense:
                    one.result = None if one.result is None else clipping.scale(one.result, factors[0])
        clipped = [dataclasses.replace(one, rows=rows[t]) for t, one in enumerate(reduced)]
        return step.apply_reduced(number, clipped)


@contextlib.contextmanager
def _after_steps_of_this_graph() -> Iterator[Callable[[list[tf.Tensor]], None]]:
    """Orders a step after what an earlier one in the same graph has noted: whether it is made.

    A rank must not have begun the next step's collectives when the step before turns out to be refused: the other ranks
    would not come to them.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with tf.control_dependencies(getattr(graph, _CERTAIN, [])):
        yield lambda made: None if graph is None else setattr(graph, _CERTAIN, made)
