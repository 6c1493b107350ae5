"""`OptimizerBinding`: an optimizer's tables and their update rules, on which the ranks agree before they train."""

from __future__ import annotations

import dataclasses
import re
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps import _ops, _table, failures, optimizers
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.collectives.all_or_none import all_or_none
from tf_sparse_ps.job.job import Job
from tf_sparse_ps.job.table_binding import TableBinding
from tf_sparse_ps.reduction import clipping, handshake, node_exchange, sparse_reducers
from tf_sparse_ps.reduction.gradients import DenseGradient, TableGradient
from tf_sparse_ps.reduction.optimizer_identity import OptimizerIdentity
from tf_sparse_ps.reduction.sparse_reducer import SparseReducer
from tf_sparse_ps.training import refusals
from tf_sparse_ps.training.balance import Balance
from tf_sparse_ps.training.optimizer_options import OptimizerOptions


class OptimizerBinding:
    """Binds an optimizer to its ranks, and to each table when the table first gets a gradient.

    Attributes:
      reducers: The reducer for each placement of tables. It is made when the first table of the placement is bound.
      balance: Compares the nodes' parts of sharded tables.
    """

    def __init__(self, owner: OptimizerOptions, collectives: Collectives, rule: optimizers.RowOptimizer | None) -> None:
        """Makes a binding without tables.

        Args:
          owner: The optimizer. The ranks agree on its options as they are at the first step.
          collectives: The rank's collectives.
          rule: The update rule of tables that have none of their own. None: the one that does what the wrapped
            optimizer does.
        """
        self.reducers: dict[str, SparseReducer] = {}
        self.balance = Balance()
        self._owner, self._collectives, self._explicit_rule = owner, collectives, rule
        # An error says why there is no rule. It is raised when a table needs one.
        self._rule: optimizers.RowOptimizer | ValueError
        self._no_decay: weakref.WeakSet[TableBinding] = weakref.WeakSet()
        self.match_rule()
        self._number: int | None = None
        self._job: Job | None = None  # set with the first table
        self._bound_paths: set[str] = set()
        self._tables: list[weakref.ref[TableBinding]] = []
        # The number of steps without tables that have begun. It is counted if other ranks may ask (`failures`).
        self._begun: tf.Variable | None = None

    @property
    def name(self) -> str:
        """The prefix of the names of this optimizer's operations, the same on all ranks."""
        assert self._number is not None  # `bind` sets it
        return f"tsps.{self._number}"

    def rule_of(self, table: TableBinding) -> optimizers.RowOptimizer:
        """Returns the update rule of a table.

        Raises:
          ValueError: There is no rule. The message has the reason.
        """
        rule = table.config.optimizer or self._rule
        if isinstance(rule, ValueError):
            raise ValueError(f"table '{table.config.name}' has no update rule: {rule}")
        if isinstance(rule, optimizers.AdamW) and rule.weight_decay and self._without_decay(table):
            return dataclasses.replace(rule, weight_decay=0.0)
        return rule

    def match_rule(self) -> None:
        """Finds the rule that does what the wrapped optimizer does with its present options."""
        if self._explicit_rule is not None:
            self._rule = self._explicit_rule
            return
        try:
            with tf.init_scope():  # `match` reads the learning rate
                self._rule = optimizers.match(self._owner.inner_optimizer)
        except ValueError as error:
            self._rule = error

    @property
    def no_decay(self) -> list[TableBinding]:
        """Tables whose rows have no weight decay. Other tables are excluded by the names of their weights."""
        return list(self._no_decay)

    @no_decay.setter
    def no_decay(self, tables: Sequence[TableBinding]) -> None:
        self._no_decay = weakref.WeakSet(tables)

    def _without_decay(self, table: TableBinding) -> bool:
        patterns = _keras.names_without_weight_decay(self._owner.inner_optimizer)
        return table in self._no_decay or any(re.search(pattern, table.weight_name) for pattern in patterns)

    def bind(
        self,
        job: Job | None,
        tables: Sequence[TableGradient],
        dense: Sequence[DenseGradient],
        *,
        begins_equal: bool,
        root: int,
    ) -> None:
        """Makes the ranks agree, if this is the first step or a table is new. Eager, on all ranks.

        Args:
          job: The job of this process. None: no table has a gradient.
          tables: The gradients of tables, in the order of the tables' ordinals.
          dense: The gradients of dense weights.
          begins_equal: Whether the ranks' weights and numbers of updates have been made equal.
          root: The rank whose rows are used if ranks have written different rows.

        Raises:
          ValueError: The ranks differ, or another optimizer has bound a table to another rule.
        """
        by_path = {gradient.table.path: gradient.table for gradient in tables}
        new = [table for path, table in by_path.items() if path not in self._bound_paths]
        refusals.refuse_other_rules([(table, self.rule_of(table)) for table in by_path.values() if table not in new])
        if self._number is not None and not new:
            return
        refusals.refuse_tables(self._owner.schedule, new)
        refusals.refuse_sharded(self._owner, new)
        refusals.refuse_cached(self._owner.schedule, new)
        settings = self._settings(tables, dense, begins_equal)
        rules = [self.rule_of(table) for table in new]
        iterations = int(tf.convert_to_tensor(self._owner.iterations))
        identity = OptimizerIdentity.of(self._owner.inner_optimizer)
        self._number = handshake.handshake(self._collectives, job, new, rules, settings, identity, iterations, root)
        self._job = self._job or job
        if self._collectives.size > 1:
            self._watch(job)
        if job is not None and new:
            self._join(job, new)
        # This comes last, so that the next step repeats everything after an exception.
        self._bound_paths.update(table.path for table in new)
        self._tables += [weakref.ref(table) for table in new]

    def options(self) -> dict[str, str]:
        """Returns the configuration of the wrapped optimizer without the learning rate, whose value steps compare."""
        return _keras.optimizer_options(self._owner.inner_optimizer)

    @property
    def tables(self) -> list[TableBinding]:
        """The tables that are bound, in the order of their ordinals."""
        tables = [table for reference in self._tables if (table := reference()) is not None]
        return sorted(tables, key=lambda table: table.ordinal)

    def count_step(self) -> None:
        """Counts a step that begins. In a graph, or eagerly."""
        if self._begun is not None:
            self._begun.assign_add(1)

    def step_in_making(self) -> int:
        """Returns the number of the step in progress: the tables' next step, or the begun step of a model without."""
        if self._job is not None:
            return int(_table.Group.open(self._job.group_path).info()["step"]) + 1
        return int(self._begun) if self._begun is not None else 0

    def _settings(
        self, tables: Sequence[TableGradient], dense: Sequence[DenseGradient], begins_equal: bool
    ) -> dict[str, Any]:
        owner = self._owner
        return {
            "sparse_reduction": owner.sparse_reduction,
            "topology": owner.topology,
            "wire": owner.wire,
            "schedule": owner.schedule,
            "broadcast": owner.broadcast,
            "wrapped optimizer": type(owner.inner_optimizer).__name__,
            # Before the ranks are made equal, one rank alone may have loaded a model.
            "updates made before": int(tf.convert_to_tensor(owner.iterations)) if begins_equal else "any",
            "clipping": clipping.Clipping.of(owner.inner_optimizer),
            **{f"`{name}` of the wrapped optimizer": value for name, value in self.options().items()},
            "dense gradients": [gradient.signature for gradient in dense],
            "tables with gradients": [gradient.table.config.name for gradient in tables],
        }

    def _watch(self, job: Job | None) -> None:
        if self._begun is None and job is None:
            self._begun = _keras.local_variable(0, "int64", f"{self.name}.begun")
        global _newest
        _newest = weakref.ref(self)
        failures.report(self._collectives, _step_in_making)

    def _join(self, job: Job, new: Sequence[TableBinding]) -> None:
        if self._collectives.size > 1:
            all_or_none(
                self._collectives, node_exchange.of(job).join, "joining the exchange of gradients", "tsps.exchange"
            )
            failures.watch(job)
            # With delayed steps, the next step is not the one that a lookup belongs to. The optimizer that was bound
            # last decides, because a program trains with one optimizer at a time.
            delays = getattr(self._owner.schedule, "sparse", False)
            _ops.allow_objections(job.group_path, allowed=not delays)
        owner = self._owner
        for placement in sorted({table.placement for table in new} - self.reducers.keys()):
            self.reducers[placement] = sparse_reducers.make(
                placement, owner.topology, job, owner.sparse_reduction, owner.wire
            )
        self.balance.add(job, new)


# The binding that was bound last. It knows which step this process makes.
_newest: weakref.ref[OptimizerBinding] | None = None


def _step_in_making() -> int:
    binding = None if _newest is None else _newest()
    return 0 if binding is None else binding.step_in_making()
