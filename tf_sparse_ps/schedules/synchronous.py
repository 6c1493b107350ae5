"""The default schedule: every step reduces its gradients and applies them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import dense_mean, rank_weight
from tf_sparse_ps.reduction.agreement import Agreement
from tf_sparse_ps.reduction.gradients import mean_of, take_back
from tf_sparse_ps.schedules.schedule import LocalStep, Schedule, ScheduleState


@dataclasses.dataclass(frozen=True)
class Synchronous(Schedule):
    """All ranks apply the same reduced gradients in the step that computed them. The default.

    One all-reduce per step carries the dense gradients. The schedule has no options, and works with every optimizer,
    table and set of collectives that `DistributedOptimizer` accepts.

    Example:
      >>> optimizer = tsps.DistributedOptimizer(keras.optimizers.Adam(1e-3), schedule=tsps.schedules.Synchronous())
    """

    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """Refuses nothing."""

    def start(self, optimizer: Any, collectives: Collectives, name: str) -> ScheduleState:
        """See `Schedule.start`."""
        return SynchronousState(optimizer, collectives, name)

    def get_config(self) -> dict[str, Any]:
        """Returns no options."""
        return {}


class SynchronousState(ScheduleState):
    """Reduces and applies the gradients of each step in that step.

    A schedule that sends the same gradients in another way overrides `average`, and `agrees_later`, `in_flight` and
    `apply` where that needs them.
    """

    def reduce(self, step: LocalStep) -> list[tf.Tensor]:
        """See `ScheduleState.reduce`.

        The reductions of dense gradients and of the tables do not wait for each other: each gets gradients that are
        ready, and none gets the other's result.
        """
        dense, weight, agreement = step.dense, step.weight, step.agreement
        big = [gradient.gradient for gradient in dense if gradient.big]
        to_average = [gradient for gradient in dense if gradient.to_average]
        reduced, weights = rank_weight.average_sparse(
            big, self._collectives, f"{self._name}.big", weight, None if to_average else agreement
        )
        self.dense_bytes = sum(gradient.bytes for gradient in to_average) if self._collectives.size > 1 else 0
        averaged, sums = self.average(
            [gradient.value for gradient in to_average],
            [gradient.variable for gradient in to_average],
            weight,
            agreement,
        )
        take_back(dense, averaged, reduced)
        step_numbers = [] if step.tables is None else [step.tables.reduce_and_commit(dense, self.in_flight())]
        if agreement is not None and not self.agrees_later():
            step_numbers += agreement.check([*sums, *weights, *self.in_flight()])
        means_of_tape = (mean_of(gradient.value) for gradient in dense)
        tape = next((mean for mean in means_of_tape if mean is not None), None)
        weights = [*weights, *sums, *(tape.sums if tape else [])]
        rank_weight.check(weights, weight, tape.weight if tape else None)
        return step_numbers

    def update(self, step: LocalStep) -> None:
        """Applies the reduced gradients."""
        self.apply([gradient.variable for gradient in step.dense], [gradient.result for gradient in step.dense])

    def average(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        weight: tf.Tensor,
        agreement: Agreement | None = None,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Averages a step's dense gradients over all ranks, by the ranks' weights. In a graph, or eagerly.

        Args:
          gradients: Floating tensors of known shapes, the same list on all ranks.
          variables: The gradients' variables.
          weight: This rank's weight, from `rank_weight.allowed`.
          agreement: As in `dense_mean.average`.

        Returns:
          As `dense_mean.average`.
        """
        return dense_mean.average(gradients, self._collectives, f"{self._name}.dense", weight, agreement)

    def agrees_later(self) -> bool:
        """Returns whether `apply`, and not `reduce`, compares the facts of the step's agreement."""
        return False

    def in_flight(self) -> list[tf.Tensor]:
        """Returns the results of this step's collectives that no tensor from `average` depends on."""
        return []

    def apply(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Lets the wrapped optimizer apply reduced gradients (None: none), and count the step."""
        if any(gradient is not None for gradient in gradients):
            _keras.apply_optimizer(self._optimizer, list(gradients), list(variables))
        else:
            self._optimizer.iterations.assign_add(1)

    def drain(self) -> None:
        """Does nothing: weights are equal and complete after every step."""

    def outstanding(self) -> bool:
        """Returns False."""
        return False

    def report(self) -> dict[str, Any]:
        """Returns no entries."""
        return {}

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """Does nothing: the ranks' weights never differ."""
