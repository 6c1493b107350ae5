"""What a schedule is to the training step: when dense gradients travel, and when they are applied."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.collectives import Collectives
from tf_sparse_ps.reduction import dense_mean, rank_weight
from tf_sparse_ps.reduction.agreement import Agreement, MakeAgreement
from tf_sparse_ps.reduction.gradients import DenseGradient, mean_of, take_back
from tf_sparse_ps.reduction.sparse_step import SparseStep


@dataclasses.dataclass(frozen=True)
class LocalStep:
    """What this rank has for a step.

    Attributes:
      dense: Gradients of dense weights; a schedule writes what it has reduced into them.
      tables: The step of the tables; None where there are none.
      rate: Learning rate of the wrapped optimizer.
      weight: Of this rank, from `rank_weight.allowed`.
      agreement: What ranks must agree on, of a step that has no tables and several ranks.
    """

    dense: list[DenseGradient]
    tables: SparseStep | None
    rate: tf.Tensor
    weight: tf.Tensor
    agreement: Agreement | None = None

    def wait_until_published(self, step_numbers: Sequence[tf.Tensor]) -> None:
        """Waits until readers of the node's tables see the step whose number `ScheduleState.reduce` returned."""
        if self.tables is not None:
            for number in step_numbers:
                self.tables.wait(number)


class Schedule(abc.ABC):
    """What a user chooses: options, checked, without state. Equal ones have equal `repr`."""

    @property
    def refuses_tiered(self) -> str | None:
        """Why tables that are partly on disk cannot be trained so; None: they can."""
        return None

    @property
    def refuses_sharded(self) -> str | None:
        """Why tables that are spread over machines cannot be trained so; None: they can."""
        return None

    @abc.abstractmethod
    def refuse(self, optimizer: Any, collectives: Collectives) -> None:
        """Raises ValueError, with the reason, if a wrapped Keras optimizer or the job cannot have this schedule."""

    def for_job(self, collectives: Collectives) -> Schedule:
        """This schedule in the job that loads a saved model, without what goes with another number of ranks."""
        return self

    @abc.abstractmethod
    def start(self, optimizer: Any, collectives: Collectives, name: str) -> ScheduleState:
        """Begins to work for an optimizer, while its first step is traced. Eager, on all ranks.

        Args:
          optimizer: The wrapped Keras optimizer, built.
          collectives: The rank's collectives.
          name: What this optimizer's operations' names begin with, the same on all ranks.
        """

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Its options, serializable."""


class ScheduleState:
    """A schedule at work for one optimizer. This one is the synchronous schedule's; others change what they must.

    A step is `reduce`, `update`, and `LocalStep.wait_until_published`.

    Attributes:
      delays_tables: Steps of tables are made later than the steps that they belong to, by `update`.
      ranks_part: Ranks have other weights until they meet again, by `make_agreement`, which the step sets.
      dense_bytes: Of dense gradients that a step hands to the all-reduce.
    """

    delays_tables = ranks_part = False
    make_agreement: MakeAgreement | None = None

    def __init__(self, optimizer: Any, collectives: Collectives, name: str) -> None:
        """See `Schedule.start`."""
        self.dense_bytes = 0
        self._optimizer, self._collectives, self._name = optimizer, collectives, name

    def reduce(self, step: LocalStep) -> list[tf.Tensor]:
        """Reduces a step's gradients over the ranks, and prepares that of its tables. In a graph, or eagerly.

        Neither reduction waits for the other: both get gradients that are ready, and neither gets what the other made.

        Returns:
          The number of the tables' step, once all ranks have committed to it; nothing may change before that. If the
          step has no tables: the number of updates before it, once the ranks agree, or an empty list. In eager mode a
          refused step has raised its error.
        """
        dense, weight = step.dense, step.weight
        big = [one.gradient for one in dense if one.big]
        to_average = [one for one in dense if one.to_average]
        agreement = step.agreement
        reduced, weights = rank_weight.average_sparse(
            big, self._collectives, f"{self._name}.big", weight, None if to_average else agreement
        )
        self.dense_bytes = sum(one.bytes for one in to_average) if self._collectives.size > 1 else 0
        averaged, sums = self.average(
            [one.value for one in to_average], [one.variable for one in to_average], weight, agreement
        )
        take_back(dense, averaged, reduced)
        step_numbers = [] if step.tables is None else [step.tables.reduce_and_commit(dense, self.in_flight())]
        if agreement is not None and not self.agrees_later():
            step_numbers += agreement.check([*sums, *weights, *self.in_flight()])
        of_tape = next((mean for mean in (mean_of(one.value) for one in dense) if mean is not None), None)
        weights = [*weights, *sums, *(of_tape.sums if of_tape else [])]
        rank_weight.check(weights, weight, of_tape.weight if of_tape else None)
        return step_numbers

    def update(self, step: LocalStep) -> None:
        """Updates the dense weights by what `reduce` has made of their gradients."""
        self.apply([one.variable for one in step.dense], [one.result for one in step.dense])

    def average(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        weight: tf.Tensor,
        agreement: Agreement | None = None,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The weighted mean of a step's dense gradients over all ranks. In a graph, or eagerly.

        Args:
          gradients: Floating tensors of known shapes, the same list on all ranks.
          variables: Whose they are.
          weight: Of this rank, from `rank_weight.allowed`.
          agreement: As `dense_mean.average` has it.

        Returns:
          As `dense_mean.average`.
        """
        return dense_mean.average(gradients, self._collectives, f"{self._name}.dense", weight, agreement)

    def agrees_later(self) -> bool:
        """Whether the ranks learn from `update`, and not from `reduce`, whether they agree."""
        return False

    def in_flight(self) -> list[tf.Tensor]:
        """What comes out of this step's collectives and is in nothing that `average` returned."""
        return []

    def apply(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Lets the wrapped optimizer apply reduced gradients (None: none), and count the step."""
        if any(gradient is not None for gradient in gradients):
            _keras.apply_optimizer(self._optimizer, list(gradients), list(variables))
        else:
            self._optimizer.iterations.assign_add(1)

    def drain(self) -> None:
        """Makes every rank's weights and the wrapped optimizer's variables equal and complete. Eager, on all ranks."""

    def outstanding(self) -> bool:
        """Whether `drain` has something to do. Eager; the same on all ranks that have made the same steps."""
        return False

    def report(self) -> dict[str, Any]:
        """See `DistributedOptimizer.schedule_report`."""
        return {}

    def also_average(self, variables: Callable[[], Sequence[Any]]) -> None:
        """See `DistributedOptimizer.also_average`: nothing, where ranks do not part."""
