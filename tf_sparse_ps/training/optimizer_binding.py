"""`OptimizerBinding`: what an optimizer agrees on with the other ranks, before its first step and for new tables."""

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
    """Binds an optimizer to its ranks and tables, as they come.

    Attributes:
      reducers: What reduces the gradients of tables, by the tables' placement; made when the first of them is bound.
      balance: Of the nodes' parts of sharded tables.
    """

    def __init__(self, owner: OptimizerOptions, collectives: Collectives, rule: optimizers.RowOptimizer | None) -> None:
        """Binds nothing yet.

        Args:
          owner: Whose options are agreed on, as they are then.
          collectives: The rank's collectives.
          rule: Of tables without their own; None: what the wrapped optimizer does.
        """
        self.reducers: dict[str, SparseReducer] = {}
        self.balance = Balance()
        self._owner, self._collectives, self._given = owner, collectives, rule
        self._rule: optimizers.RowOptimizer | ValueError  # why there is none, which matters when there is a table
        self._no_decay: weakref.WeakSet[TableBinding] = weakref.WeakSet()
        self.match_rule()
        self._number: int | None = None
        self._job: Job | None = None  # once there is a table
        self._bound: set[str] = set()  # paths
        self._tables: list[weakref.ref[TableBinding]] = []
        self._begun: tf.Variable | None = None  # steps without tables, counted when others may ask: see `failures`

    @property
    def name(self) -> str:
        """The prefix of the names of this optimizer's operations, the same on all ranks."""
        assert self._number is not None  # it is bound
        return f"tsps.{self._number}"

    def rule_of(self, table: TableBinding) -> optimizers.RowOptimizer:
        """The update rule of a table.

        Raises:
          ValueError: There is none, with the reason.
        """
        rule = table.config.optimizer or self._rule
        if isinstance(rule, ValueError):
            raise ValueError(f"table '{table.config.name}' has no update rule: {rule}")
        if isinstance(rule, optimizers.AdamW) and rule.weight_decay and self._without_decay(table):
            return dataclasses.replace(rule, weight_decay=0.0)
        return rule

    def match_rule(self) -> None:
        """Finds the rule that does what the wrapped optimizer does, as that is now."""
        if self._given is not None:
            self._rule = self._given
            return
        try:
            with tf.init_scope():  # its learning rate is read
                self._rule = optimizers.match(self._owner.inner_optimizer)
        except ValueError as error:
            self._rule = error

    @property
    def no_decay(self) -> list[TableBinding]:
        """Tables whose rows have no weight decay, besides those that are left out by the names of their weights."""
        return list(self._no_decay)

    @no_decay.setter
    def no_decay(self, tables: Sequence[TableBinding]) -> None:
        self._no_decay = weakref.WeakSet(tables)

    def _without_decay(self, table: TableBinding) -> bool:
        patterns = _keras.names_without_weight_decay(self._owner.inner_optimizer)
        return table in self._no_decay or any(re.search(one, table.weight_name) for one in patterns)

    def bind(
        self,
        job: Job | None,
        tables: Sequence[TableGradient],
        dense: Sequence[DenseGradient],
        *,
        begins_equal: bool,
        root: int,
    ) -> None:
        """Agrees with the other ranks, if it is the first step or there is a new table. Eager, on all ranks.

        Args:
          job: This process's, if there are tables.
          tables: Gradients of tables, in the order of their ordinals.
          dense: Gradients of dense weights.
          begins_equal: The ranks' weights and numbers of updates have been made equal.
          root: The rank whose rows count where ranks have written different ones.

        Raises:
          ValueError: Ranks differ; or a table is bound to another rule by now.
        """
        new = list({one.table.path: one.table for one in tables if one.table.path not in self._bound}.values())
        refusals.refuse_other_rules([(one.table, self.rule_of(one.table)) for one in tables if one.table not in new])
        if self._number is not None and not new:
            return
        refusals.refuse_tiered(self._owner.schedule, new)
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
        # Last: after an exception the next step does all of it once more.
        self._bound.update(table.path for table in new)
        self._tables += [weakref.ref(table) for table in new]

    def options(self) -> dict[str, str]:
        """Returns the configuration of the wrapped optimizer without the learning rate, whose value steps compare."""
        return _keras.optimizer_options(self._owner.inner_optimizer)

    @property
    def tables(self) -> list[TableBinding]:
        """Those that are bound, in the order of their ordinals."""
        return sorted((one for one in (reference() for reference in self._tables) if one is not None), key=_ordinal)

    def count_step(self) -> None:
        """A step begins. In a graph, or eagerly."""
        if self._begun is not None:
            self._begun.assign_add(1)

    def step_in_making(self) -> int:
        """Returns the step that this process makes: the tables' next step, or without tables the one it has begun."""
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
            # Until ranks are made equal, one alone may have loaded them.
            "updates made before": int(tf.convert_to_tensor(owner.iterations)) if begins_equal else "any",
            "clipping": clipping.Clipping.of(owner.inner_optimizer),
            **{f"`{name}` of the wrapped optimizer": value for name, value in self.options().items()},
            "dense gradients": [one.signature for one in dense],
            "tables with gradients": [one.table.config.name for one in tables],
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
            # A step that is made later, beside others, is not the one that a lookup belongs to. The optimizer that was
            # bound last decides: programs have one at a time.
            delays = getattr(self._owner.schedule, "sparse", False)
            _ops.allow_objections(job.group_path, allowed=not delays)
        owner = self._owner
        for placement in sorted({table.placement for table in new} - self.reducers.keys()):
            self.reducers[placement] = sparse_reducers.make(
                placement, owner.topology, job, owner.sparse_reduction, owner.wire
            )
        self.balance.add(job, new)


def _ordinal(table: TableBinding) -> int:
    return table.ordinal


# The one that was bound last: that is asked for the step of this process, if it is still there.
_newest: weakref.ref[OptimizerBinding] | None = None


def _step_in_making() -> int:
    found = None if _newest is None else _newest()
    return 0 if found is None else found.step_in_making()
